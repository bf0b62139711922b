"""The configuration of a Prometheus server that scrapes the nodes of a cluster. Pure."""

from collections.abc import Sequence

from moldau.observe.alert_rules import JOB
from moldau.observe.yaml_text import Yaml

CONFIG_FILE = "prometheus.yml"
RULES_FILE = "moldau-alerts.yml"


def prometheus_config(
    targets: Sequence[str], *, cluster: str, interval_s: int, alertmanagers: Sequence[str] = ()
) -> dict[str, Yaml]:
    """Returns the content of CONFIG_FILE. `targets` are the HTTP addresses of all nodes as host:port."""
    config: dict[str, Yaml] = {
        "global": {"scrape_interval": f"{interval_s}s", "evaluation_interval": f"{interval_s}s"},
        "rule_files": [RULES_FILE],
        "scrape_configs": [
            {"job_name": JOB, "static_configs": [{"targets": list(targets), "labels": {"cluster": cluster}}]}
        ],
    }
    if alertmanagers:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]}
    return config
