"""Ports, directories and settings of the nodes of `moldau up`. They are checked before any node is started."""

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moldau.cli.child_node import HOST, bind_once
from moldau.cli.console import CommandError
from moldau.cli.data_lock import data_lock
from moldau.errors import InvalidConfigError, StorageError
from moldau.node.meta_properties import FILE_NAME as IDENTITY_FILE
from moldau.node.meta_properties import new_cluster_id
from moldau.platform.os_disk import replace_file
from moldau.platform.system import system_platform
from moldau.settings.broker import BrokerSettings, get_value
from moldau.settings.postgres_url import split_password
from moldau.settings.sources import build_settings

CLUSTER_FILE = "cluster.json"
DEFAULT_PORT = 9092
DEFAULT_STORE = "files"
VOTERS_MAX = 5
REPLICAS_MAX = 3
RESERVED_SETTINGS = ("node.id", "listen", "data.dir", "store", "cluster.id", "controller.quorum.voters", "http.port")
"""Settings that `moldau up` chooses for each node and rejects in `--set`."""
PASSWORD_SETTING = "postgres.password"
"""Nodes get it in an environment variable, because other users may be able to read the config files."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    node_id: int
    port: int
    directory: Path
    settings: BrokerSettings

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def http_address(self) -> str | None:
        """The address of the HTTP server; None if it is off."""
        settings = self.settings
        return None if settings.http_port < 0 else f"{settings.http_host}:{settings.http_port}"

    @property
    def settings_file(self) -> Path:
        return self.directory / "node.toml"

    @property
    def pid_file(self) -> Path:
        return self.directory / "pid"

    @property
    def log_file(self) -> Path:
        return self.directory / "log.txt"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    cluster_id: str
    nodes: tuple[NodePlan, ...]
    is_new: bool

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes)


def make_plan(
    directory: Path,
    nodes: int,
    port: int | None,
    settings: Mapping[str, str],
    *,
    write_caching: bool,
    http_port: int | None = None,
    store: str | None = None,
) -> ClusterPlan:
    """Plans a new cluster, or the existing one in `directory`. Raises CommandError if the options contradict it."""
    stored = _read_cluster_file(directory)
    is_new = stored is None
    if stored is None:
        _check_unused(directory, nodes)
        cluster_id = new_cluster_id(system_platform().random)
        stored = {"cluster_id": cluster_id, "nodes": nodes, "port": port or DEFAULT_PORT, "store": DEFAULT_STORE}
        if store is not None:
            stored["store"] = split_password(store)[0]
    if stored["nodes"] != nodes:
        raise CommandError(
            f"{directory} has a cluster of {stored['nodes']} nodes, not {nodes}: use --nodes {stored['nodes']}, or "
            f"choose another --data-dir."
        )
    if port not in (None, stored["port"]):
        raise CommandError(
            f"The first node of the cluster in {directory} has port {stored['port']}, which cannot be changed: use "
            f"--port {stored['port']}, or choose another --data-dir."
        )
    if store is not None and split_password(store)[0] != stored["store"]:
        raise CommandError(
            f"The cluster in {directory} has its data in {stored['store']}, which cannot be changed: use --store "
            f"{stored['store']}, or choose another --data-dir."
        )
    cluster_id, first_port = stored["cluster_id"], stored["port"]
    if first_port + nodes - 1 > 65_535:
        raise CommandError(
            f"{nodes} nodes starting at port {first_port} need ports above 65535: choose a lower --port."
        )
    if http_port is not None:
        _check_http_ports(nodes, first_port, http_port)
    shared = _shared_settings(nodes, first_port, cluster_id, write_caching=write_caching)
    schema = settings.get("postgres.schema", get_value(BrokerSettings(), "postgres.schema"))
    plans = []
    for node_id in range(1, nodes + 1):
        node_port, node_dir = first_port + node_id - 1, directory / f"node-{node_id}"
        own = {"node.id": str(node_id), "listen": f"{HOST}:{node_port}", "data.dir": str(node_dir.absolute())}
        if http_port is not None:
            own["http.port"] = str(http_port + node_id - 1)
        if stored["store"] != DEFAULT_STORE:
            own |= {"store": store or stored["store"], "postgres.schema": f"{schema}_{node_id}"}
        plans.append(NodePlan(node_id, node_port, node_dir, _settings({**shared, **settings, **own}, settings)))
    return ClusterPlan(cluster_id, tuple(plans), is_new)


def _check_http_ports(nodes: int, first_port: int, http_port: int) -> None:
    if http_port + nodes - 1 > 65_535:
        raise CommandError(
            f"{nodes} nodes starting at HTTP port {http_port} need ports above 65535: choose a lower --http-port."
        )
    if abs(http_port - first_port) < nodes:
        raise CommandError(
            f"The ports of {nodes} nodes from {first_port} on and their HTTP ports from {http_port} on overlap: choose "
            f"another --http-port."
        )


def voter_count(nodes: int) -> int:
    """Returns the number of voters. It is odd, because four voters tolerate no more failures than three."""
    return min(nodes - 1 + nodes % 2, VOTERS_MAX)


def _shared_settings(nodes: int, first_port: int, cluster_id: str, *, write_caching: bool) -> dict[str, str]:
    replicas = min(nodes, REPLICAS_MAX)
    min_isr = "2" if nodes >= REPLICAS_MAX else "1"
    voters = [f"{number + 1}@{HOST}:{first_port + number}" for number in range(voter_count(nodes))]
    settings = {
        "cluster.id": cluster_id,
        "controller.quorum.voters": ",".join(voters),
        "default.replication.factor": str(replicas),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": min_isr,
        "min.insync.replicas": min_isr,
    }
    if write_caching:
        settings["write.caching"] = "true"
    return settings


def _settings(values: Mapping[str, str], options: Mapping[str, str]) -> BrokerSettings:
    for name in RESERVED_SETTINGS:
        if name in options:
            raise CommandError(f"--set {name}: this setting is chosen by `moldau up`.")
    try:
        return build_settings(flags=values)
    except InvalidConfigError as error:
        raise CommandError(str(error).replace("flag --", "setting --")) from None


def check_host(plan: ClusterPlan) -> list[str]:
    """Returns notices for the user. Raises CommandError if a node is already running or a port is in use."""
    notices = []
    for node in plan.nodes:
        if node.directory.is_dir():
            try:
                with data_lock(str(node.directory)):
                    pass
            except StorageError as error:
                raise CommandError(f"Node {node.node_id} is already running: {error}.") from None
        if node.pid_file.exists():
            notices.append(f"node {node.node_id} was not shut down cleanly; its logs are recovered on startup")
        _check_port(node.port, node.node_id, "--port")
        if node.http_address is not None:
            _check_port(node.settings.http_port, node.node_id, "--http-port")
    return notices


def _check_port(port: int, node_id: int, flag: str) -> None:
    try:
        bind_once(port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CommandError(
                f"Port {port} of node {node_id} is in use: stop the process that uses it, or choose another {flag}."
            ) from None
        raise CommandError(f"Port {port} cannot be used: {error.strerror}.") from None


def write_plan(directory: Path, plan: ClusterPlan) -> None:
    """Writes the cluster file, then the config files. In this order, an interrupted first start can be repeated."""
    directory.mkdir(parents=True, exist_ok=True)
    if plan.is_new:
        first = plan.nodes[0]
        stored = {
            "cluster_id": plan.cluster_id,
            "nodes": len(plan.nodes),
            "port": first.port,
            "store": first.settings.store,
        }
        replace_file(str(directory / CLUSTER_FILE), (json.dumps(stored, indent=2) + "\n").encode())
    for node in plan.nodes:
        node.directory.mkdir(exist_ok=True)
        replace_file(str(node.settings_file), as_toml(node.settings).encode())


def as_toml(settings: BrokerSettings) -> str:
    """Returns the explicitly set settings as text of a config file for `moldau serve`, without passwords."""
    lines = ["# Generated by `moldau up` at each start."]
    for name in sorted(settings.explicitly_set - {PASSWORD_SETTING}):
        # All values are strings, numbers, booleans or lists of strings, which JSON and TOML write in the same way.
        lines.append(f'"{name}" = {json.dumps(get_value(settings, name), ensure_ascii=False)}')
    return "\n".join(lines) + "\n"


def _read_cluster_file(directory: Path) -> dict[str, Any] | None:
    path = directory / CLUSTER_FILE
    try:
        stored = {"store": DEFAULT_STORE, **json.loads(path.read_text())}
        if not (isinstance(stored["cluster_id"], str) and stored["nodes"] > 0 and 0 < stored["port"] < 65_536):
            raise ValueError
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise CommandError(f"{path} is invalid: restore it, or choose another --data-dir.") from None
    return dict(stored)


def _check_unused(directory: Path, nodes: int) -> None:
    if (directory / IDENTITY_FILE).exists():
        raise CommandError(f"{directory} has the data of a single node: choose another --data-dir.")
    for number in range(1, nodes + 1):
        if (directory / f"node-{number}").exists():
            raise CommandError(
                f"{directory}/node-{number} exists, but {CLUSTER_FILE} is missing: restore it, or choose "
                f"another --data-dir."
            )
