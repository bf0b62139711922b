"""`moldau cluster status`: nodes, controller, quorum, and unhealthy partitions."""

from collections import Counter
from typing import Any, Literal, NamedTuple

from moldau.cli.admin import run_admin
from moldau.cli.console import make_table, out_console, pluralize, print_json_lines, print_table
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Json
from moldau.client.admin.admin import Admin
from moldau.client.admin.types import ClusterDescription, QuorumInfo
from moldau.client.net.metadata import TopicInfo

PARTITIONS_SHOWN_MAX = 10
"""Maximum number of partitions listed per problem."""


class ClusterState(NamedTuple):
    cluster: ClusterDescription
    quorum: QuorumInfo
    topics: list[TopicInfo]
    reassignment_count: int


def cluster_status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False) -> None:
    """Show the nodes of a cluster, its controller and quorum, and leaderless or under-replicated partitions."""

    async def operation(admin: Admin) -> ClusterState:
        return ClusterState(
            await admin.describe_cluster(fenced_too=True),
            await admin.describe_quorum(),
            await admin.list_topics(internal=True),
            len(await admin.list_reassignments()),
        )

    state = run_admin(operation, bootstrap)
    nodes = _nodes(state)
    if as_json:
        print_json_lines([_to_json(state, nodes)])
        return
    _print_nodes(nodes)
    quorum = state.quorum
    voters = ", ".join(str(each.node_id) for each in quorum.voters)
    out_console.print()
    out_console.print(f"cluster     {state.cluster.cluster_id}", markup=False)
    out_console.print(f"controller  node {quorum.leader_id}, epoch {quorum.epoch}")
    out_console.print(f"quorum      voters {voters}; committed up to {quorum.high_watermark}")
    _print_partitions(state)


class NodeState(NamedTuple):
    node: int
    host: str
    port: int
    rack: str | None
    state: Literal["up", "down"]
    quorum: Literal["leader", "voter", "observer"]
    leaders: int
    """The number of partitions that the node leads."""
    replicas: int
    out_of_sync: int
    """The number of replicas that are not in sync."""
    metadata_lag: int | None
    """How many records of the metadata log the node lacks; None if it is unknown."""


def _nodes(state: ClusterState) -> list[NodeState]:
    partitions = [each for topic in state.topics for each in topic.partitions]
    leaders = Counter(each.leader for each in partitions)
    replicas = Counter(replica for each in partitions for replica in each.replicas)
    out_of_sync = Counter(replica for each in partitions for replica in each.replicas if replica not in each.in_sync)
    fenced = {each.node_id for each in state.cluster.fenced}
    return [
        NodeState(
            broker.node_id,
            broker.host,
            broker.port,
            broker.rack,
            "down" if broker.node_id in fenced else "up",
            _role(state.quorum, broker.node_id),
            leaders[broker.node_id],
            replicas[broker.node_id],
            out_of_sync[broker.node_id],
            _metadata_lag(state.quorum, broker.node_id),
        )
        for broker in sorted(state.cluster.brokers + state.cluster.fenced)
    ]


def _print_nodes(nodes: list[NodeState]) -> None:
    numbers = ("node", "leaders", "replicas", "out of sync", "metadata lag")
    rows = make_table("node", "address", "rack", "state", "quorum", *numbers[1:], numbers=numbers)
    for each in nodes:
        rows.add_row(
            str(each.node),
            f"{each.host}:{each.port}",
            each.rack or "-",
            each.state,
            each.quorum,
            str(each.leaders),
            str(each.replicas),
            str(each.out_of_sync),
            "-" if each.metadata_lag is None else str(each.metadata_lag),
        )
    print_table(rows)


def _role(quorum: QuorumInfo, node_id: int) -> Literal["leader", "voter", "observer"]:
    if node_id == quorum.leader_id:
        return "leader"
    return "voter" if any(each.node_id == node_id for each in quorum.voters) else "observer"


def _metadata_lag(quorum: QuorumInfo, node_id: int) -> int | None:
    replica, leader = quorum.replica(node_id), quorum.replica(quorum.leader_id)
    if replica is None or leader is None or replica.end_offset < 0:
        return None
    return max(0, leader.end_offset - replica.end_offset)


class PartitionProblems(NamedTuple):
    """The names of unhealthy partitions."""

    without_leader: list[str]
    without_isr: list[str]
    under_replicated: list[str]


def _problems(topics: list[TopicInfo]) -> PartitionProblems:
    partitions = [(f"{topic.name}-{each.index}", each) for topic in topics for each in topic.partitions]
    return PartitionProblems(
        [name for name, each in partitions if each.leader < 0],
        [name for name, each in partitions if each.leader < 0 and not each.in_sync],
        [name for name, each in partitions if len(each.in_sync) < len(each.replicas)],
    )


def _print_partitions(state: ClusterState) -> None:
    problems = _problems(state.topics)
    count = sum(len(topic.partitions) for topic in state.topics)
    out_console.print(f"partitions  {count} in {pluralize(len(state.topics), 'topic')}")
    for problem, names in (
        ("without a leader", problems.without_leader),
        ("without an in-sync replica", problems.without_isr),
        ("under-replicated", problems.under_replicated),
    ):
        if names:
            more = f" and {len(names) - PARTITIONS_SHOWN_MAX} more" if len(names) > PARTITIONS_SHOWN_MAX else ""
            out_console.print(
                f"            {len(names)} {problem}: {', '.join(names[:PARTITIONS_SHOWN_MAX])}{more}", markup=False
            )
    if state.reassignment_count:
        out_console.print(f"            {state.reassignment_count} being reassigned")
    if not problems.without_leader and not problems.under_replicated:
        out_console.print("            all partitions have a leader and all replicas are in sync")


def _to_json(state: ClusterState, nodes: list[NodeState]) -> dict[str, Any]:
    return {
        "cluster_id": state.cluster.cluster_id,
        "controller_id": state.quorum.leader_id,
        "controller_epoch": state.quorum.epoch,
        "voters": [each.node_id for each in state.quorum.voters],
        "metadata_high_watermark": state.quorum.high_watermark,
        "nodes": [each._asdict() for each in nodes],
        "topics": len(state.topics),
        "partitions": sum(len(topic.partitions) for topic in state.topics),
        "partitions_being_reassigned": state.reassignment_count,
        **{f"partitions_{name}": names for name, names in _problems(state.topics)._asdict().items()},
    }
