"""`moldau generate compose`: a cluster for Docker Compose."""

import json
from typing import Annotated

import typer

from moldau.cli.generate.output import Output, write_output
from moldau.cli.parameters import option, validate_name
from moldau.node.meta_properties import new_cluster_id
from moldau.observe.alert_rules import rule_groups
from moldau.observe.dashboard import dashboard
from moldau.observe.prometheus_config import CONFIG_FILE, RULES_FILE, prometheus_config
from moldau.observe.yaml_text import Yaml, format_yaml
from moldau.platform.system import system_platform

NODES_MAX = 100
VOTERS_MAX = 5
INTERNAL_PORT, EXTERNAL_PORT, HTTP_PORT = 9092, 19092, 8001
PROMETHEUS_PORT, GRAFANA_PORT = 9090, 3000
DASHBOARD_DIRECTORY = "/etc/grafana/dashboards"


def generate_compose(
    nodes: Annotated[int, option("--nodes -n", "NUMBER", "Number of nodes.", min=1, max=NODES_MAX)] = 3,
    image: Annotated[
        str,
        option("--image", "NAME", "Image of Moldau: run `docker build -t moldau .` in its repository.", validate_name),
    ] = "moldau",
    port: Annotated[
        int,
        option("--port", "PORT", "Kafka port of the first node on this host; the others use the next ports.", min=1),
    ] = 9092,
    http_port: Annotated[
        int,
        option(
            "--http-port", "PORT", "HTTP port of the first node on this host; the others use the next ports.", min=1
        ),
    ] = 8001,
    cluster_id: Annotated[
        str | None, option("--cluster-id", "ID", "Id of the cluster; by default a new one.", validate_name)
    ] = None,
    monitoring: Annotated[
        bool,
        typer.Option(
            "--monitoring",
            help=f"Add Prometheus (port {PROMETHEUS_PORT}) with the alert rules, and Grafana (port {GRAFANA_PORT}) "
            "with the dashboard. Needs Docker Compose 2.23.1 or later.",
        ),
    ] = False,
    output: Output = None,
) -> None:
    """Print a Docker Compose file: a cluster with a volume per node, reachable from this host only.

    moldau generate compose --nodes 3 --monitoring --output compose.yaml && docker compose -f compose.yaml up
    """
    _check_ports(nodes, port, http_port, monitoring=monitoring)
    names = [f"broker-{node_id}" for node_id in range(1, nodes + 1)]
    common = _common_environment(names, cluster_id or new_cluster_id(system_platform().random))
    services: dict[str, Yaml] = {
        name: _broker(name, node_id, image, common, port + node_id - 1, http_port + node_id - 1)
        for node_id, name in enumerate(names, 1)
    }
    volumes: dict[str, Yaml] = {name: {} for name in names}
    document: dict[str, Yaml] = {"services": services, "volumes": volumes}
    if monitoring:
        services |= _monitoring_services()
        volumes |= {"prometheus": {}, "grafana": {}}
        document["configs"] = _monitoring_configs([f"{name}:{HTTP_PORT}" for name in names])
    write_output(format_yaml(document), output)


def _check_ports(nodes: int, port: int, http_port: int, *, monitoring: bool) -> None:
    ranges = {"--port": range(port, port + nodes), "--http-port": range(http_port, http_port + nodes)}
    for name, ports in ranges.items():
        if ports[-1] > 65_535:
            raise typer.BadParameter(f"{nodes} nodes from port {ports[0]} on need ports above 65535.", param_hint=name)
        if monitoring and (PROMETHEUS_PORT in ports or GRAFANA_PORT in ports):
            raise typer.BadParameter(
                f"Prometheus and Grafana use the ports {PROMETHEUS_PORT} and {GRAFANA_PORT}.", param_hint=name
            )
    if abs(http_port - port) < nodes:
        raise typer.BadParameter("The ports overlap with those of --port.", param_hint="--http-port")


def _common_environment(names: list[str], cluster_id: str) -> dict[str, Yaml]:
    replicas = min(3, len(names))
    voters = [f"{node_id}@{name}:{INTERNAL_PORT}" for node_id, name in enumerate(names[:VOTERS_MAX], 1)]
    if len(voters) % 2 == 0:
        # An even number of voters tolerates no more failures.
        del voters[-1]
    return {
        "MOLDAU_CLUSTER_ID": cluster_id,
        "MOLDAU_CONTROLLER_QUORUM_VOTERS": ",".join(voters),
        "MOLDAU_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS": ",".join(voter.partition("@")[2] for voter in voters),
        "MOLDAU_DATA_DIR": "/data",
        "MOLDAU_HTTP_HOST": "0.0.0.0",
        "MOLDAU_HTTP_PORT": str(HTTP_PORT),
        "MOLDAU_LISTEN": f"INTERNAL://0.0.0.0:{INTERNAL_PORT},EXTERNAL://0.0.0.0:{EXTERNAL_PORT}",
        "MOLDAU_INTER_BROKER_LISTENER_NAME": "INTERNAL",
        "MOLDAU_DEFAULT_REPLICATION_FACTOR": str(replicas),
        "MOLDAU_OFFSETS_TOPIC_REPLICATION_FACTOR": str(replicas),
        "MOLDAU_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": str(replicas),
        "MOLDAU_MIN_INSYNC_REPLICAS": "2" if replicas == 3 else "1",
    }


def _broker(name: str, node_id: int, image: str, common: dict[str, Yaml], port: int, http_port: int) -> dict[str, Yaml]:
    probe = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{HTTP_PORT}/readyz', timeout=2)"
    return {
        "image": image,
        "restart": "unless-stopped",
        "stop_grace_period": "60s",
        "entrypoint": ["moldau", "serve"],
        "environment": {
            "MOLDAU_NODE_ID": str(node_id),
            "MOLDAU_ADVERTISED_LISTENERS": f"INTERNAL://{name}:{INTERNAL_PORT},EXTERNAL://127.0.0.1:{port}",
            **common,
        },
        "ports": [f"127.0.0.1:{port}:{EXTERNAL_PORT}", f"127.0.0.1:{http_port}:{HTTP_PORT}"],
        "volumes": [f"{name}:/data"],
        "healthcheck": {
            "test": ["CMD", "python3", "-c", probe],
            "interval": "5s",
            "timeout": "3s",
            "retries": 5,
            "start_period": "10s",
        },
    }


def _monitoring_services() -> dict[str, Yaml]:
    return {
        "prometheus": {
            "image": "prom/prometheus",
            "restart": "unless-stopped",
            "configs": [
                {"source": "prometheus", "target": f"/etc/prometheus/{CONFIG_FILE}"},
                {"source": "alerts", "target": f"/etc/prometheus/{RULES_FILE}"},
            ],
            "ports": [f"127.0.0.1:{PROMETHEUS_PORT}:9090"],
            "volumes": ["prometheus:/prometheus"],
        },
        "grafana": {
            "image": "grafana/grafana",
            "restart": "unless-stopped",
            # The port is published on this host only.
            "environment": {"GF_AUTH_ANONYMOUS_ENABLED": "true", "GF_AUTH_ANONYMOUS_ORG_ROLE": "Editor"},
            "configs": [
                {"source": "datasource", "target": "/etc/grafana/provisioning/datasources/moldau.yml"},
                {"source": "dashboards", "target": "/etc/grafana/provisioning/dashboards/moldau.yml"},
                {"source": "dashboard", "target": f"{DASHBOARD_DIRECTORY}/moldau.json"},
            ],
            "ports": [f"127.0.0.1:{GRAFANA_PORT}:3000"],
            "volumes": ["grafana:/var/lib/grafana"],
        },
    }


def _monitoring_configs(targets: list[str]) -> dict[str, Yaml]:
    contents = {
        "prometheus": format_yaml(prometheus_config(targets, cluster="moldau", interval_s=15)),
        "alerts": format_yaml(rule_groups()),
        "datasource": format_yaml(
            {
                "apiVersion": 1,
                "datasources": [
                    {
                        "name": "Prometheus",
                        "type": "prometheus",
                        "access": "proxy",
                        "url": "http://prometheus:9090",
                        "isDefault": True,
                    }
                ],
            }
        ),
        "dashboards": format_yaml(
            {
                "apiVersion": 1,
                "providers": [{"name": "moldau", "type": "file", "options": {"path": DASHBOARD_DIRECTORY}}],
            }
        ),
        "dashboard": json.dumps(dashboard()),
    }
    # Compose replaces variables; two dollar signs are one.
    return {name: {"content": text.replace("$", "$$")} for name, text in contents.items()}
