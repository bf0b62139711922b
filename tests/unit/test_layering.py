"""The architecture, kept by a test: imports point downwards only, and what decides is pure."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

# From the ground up. A module may import from its own layer and from those above it in this list; the
# longest name that fits a module says which layer it is in.
LAYERS = [
    [
        "moldau.errors",
        "moldau.concurrency",
        "moldau.observe",
        "moldau.platform",
        "moldau.metrics.exposition",
        "moldau.metrics.histogram",
    ],
    ["moldau.wire", "moldau.error_codes", "moldau.error_statuses", "moldau.metadata.image"],
    ["moldau.settings", "moldau.metrics"],
    ["moldau.records"],
    ["moldau.logs", "moldau.lag.state"],
    ["moldau.client", "moldau.columnar"],
    ["moldau.spark"],
    ["moldau.pipelines"],
    ["moldau.outbox"],
    ["moldau.peers"],
    ["moldau.coordinator", "moldau.raft"],
    ["moldau.metadata"],
    ["moldau.controller"],
    ["moldau.broker_lifecycle"],
    ["moldau.partitions", "moldau.network"],
    ["moldau.replication"],
    [
        "moldau.coordinator.shard_driver",
        "moldau.coordinator.shard_manager",
        "moldau.coordinator.state_partition",
        "moldau.coordinator.state_topic",
    ],
    ["moldau.groups", "moldau.transactions"],
    ["moldau.lag"],
    ["moldau.server"],
    ["moldau.handlers"],
    ["moldau.http"],
    ["moldau.node"],
    ["moldau.testing", "moldau.cli", "moldau.__main__"],
]
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

PURE = [
    "moldau.wire",
    "moldau.records",
    "moldau.settings",
    "moldau.metrics",
    "moldau.observe.alert_rules",
    "moldau.observe.dashboard",
    "moldau.observe.prometheus_config",
    "moldau.observe.yaml_text",
    "moldau.metadata.image",
    "moldau.metadata.image_builder",
    "moldau.metadata.records",
    "moldau.coordinator.deadline_queue",
    "moldau.coordinator.java_hash",
    "moldau.coordinator.record_format",
    "moldau.coordinator.result",
    "moldau.raft.batches",
    "moldau.raft.effects",
    "moldau.raft.events",
    "moldau.raft.epoch_roles",
    "moldau.raft.quorum_config",
    "moldau.raft.quorum_fetcher",
    "moldau.raft.quorum_state",
    "moldau.raft.step_context",
    "moldau.raft.raft_log_state",
    "moldau.raft.messages",
    "moldau.raft.leader_state",
    "moldau.raft.snapshot_format",
    "moldau.raft.state_machine",
    "moldau.raft.voter_set",
    "moldau.metadata.snapshot",
    "moldau.controller.elections",
    "moldau.controller.alter_partition",
    "moldau.controller.partition_index",
    "moldau.controller.heartbeat_manager",
    "moldau.controller.partition_change_builder",
    "moldau.controller.reassignment",
    "moldau.controller.requests",
    "moldau.broker_lifecycle.state",
    "moldau.replication.fetch_session",
    "moldau.replication.state",
    "moldau.replication.quota",
    "moldau.partitions.append_times",
    "moldau.partitions.follower_state",
    "moldau.partitions.overdue_transactions",
    "moldau.controller.cluster_control",
    "moldau.controller.configuration_control",
    "moldau.controller.ids",
    "moldau.controller.placement",
    "moldau.controller.state",
    "moldau.controller.topics",
    "moldau.logs.compaction",
    "moldau.logs.leader_epochs",
    "moldau.logs.producer_state",
    "moldau.client.producer.record_accumulator",
    "moldau.client.producer.producer_batch",
    "moldau.client.producer.transaction_manager",
    "moldau.client.consumer.fetch_position",
    "moldau.client.security.sasl",
    "moldau.client.security.config",
    "moldau.client.consumer.completed_fetch",
    "moldau.client.group.assignors",
    "moldau.client.group.sticky_assignment",
    "moldau.client.errors",
    "moldau.client.group.events",
    "moldau.client.group.member_state",
    "moldau.client.group.membership_manager",
    "moldau.client.net.metadata",
    "moldau.client.producer.partitioner",
    "moldau.client.consumer.subscription_state",
    "moldau.client.record",
    "moldau.client.listener.ack_window",
    "moldau.client.listener.dead_letters",
    "moldau.client.net.api_versions",
    "moldau.concurrency.backoff",
    "moldau.partitions.leader_state",
    "moldau.transactions.formats",
    "moldau.transactions.id_pattern",
    "moldau.transactions.records",
    "moldau.transactions.requests",
    "moldau.transactions.shard",
    "moldau.transactions.state_topic",
    "moldau.transactions.timeouts",
    "moldau.transactions.transaction_metadata",
    "moldau.transactions.verification_queue",
    "moldau.groups.records",
    "moldau.groups.requests",
    "moldau.groups.formats",
    "moldau.coordinator.java_hash",
    "moldau.lag.state",
    "moldau.groups.classic_group",
    "moldau.groups.classic_group_metadata",
    "moldau.groups.delayed_operations",
    "moldau.groups.members",
    "moldau.groups.group_registry",
    "moldau.groups.committed_offsets",
    "moldau.groups.shard",
    "moldau.coordinator.deadline_queue",
    "moldau.http.request_head",
    "moldau.outbox.errors",
    "moldau.outbox.rows",
    "moldau.outbox.schema",
]
IMPURE = {"asyncio", "os", "random", "secrets", "selectors", "socket", "threading", "time"}
WORLDLY = {
    "moldau.platform",
    "moldau.testing",
    "moldau.cli",
    "moldau.network",
    "moldau.concurrency",
    "moldau.columnar.native",
    "moldau.spark",
    "moldau.pipelines",
}
"""Where the outside is let in: everybody else takes clock, randomness and disk from the world."""


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted((SOURCE / "moldau").rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


MODULES = modules()


def is_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def rank(name: str) -> int:
    fitting = [prefix for prefix in RANKS if is_below(name, prefix)]
    assert fitting, f"{name} is in no layer: say in LAYERS where it belongs"
    return RANKS[max(fitting, key=len)]


def imports(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES else node.module
                for alias in node.names
            )
    return names


def only_for_types(tree: ast.Module) -> set[str]:
    """What is imported under `if TYPE_CHECKING` exists for the type checker only."""
    guarded = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    return set().union(*(imports(ast.Module(body=node.body, type_ignores=[])) for node in guarded), set())


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"moldau"}))
def test_imports_point_downwards(name: str) -> None:
    tree = MODULES[name]
    for imported in sorted(imports(tree) - only_for_types(tree)):
        if imported.startswith("moldau.") and imported != "moldau":
            assert rank(imported) <= rank(name), f"{name} reaches up to {imported}"


@pytest.mark.parametrize("name", sorted(name for name in MODULES if any(is_below(name, prefix) for prefix in PURE)))
def test_what_decides_is_pure(name: str) -> None:
    roots = {imported.split(".")[0] for imported in imports(MODULES[name])}
    assert not roots & IMPURE, f"{name} decides, so it takes time, chance and I/O from its caller"


def test_the_outside_comes_in_through_the_world() -> None:
    for name, tree in MODULES.items():
        if any(is_below(name, prefix) for prefix in WORLDLY):
            continue
        roots = {imported.split(".")[0] for imported in imports(tree) - only_for_types(tree)}
        assert not roots & {"time", "threading", "socket", "os", "secrets"}, name


def test_kio_comes_in_through_one_door() -> None:
    for name, tree in MODULES.items():
        if name != "moldau.wire.kio":
            assert not any(is_below(imported, "kio") for imported in imports(tree)), name
