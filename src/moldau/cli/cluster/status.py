"""`moldau cluster status`: nodes, controller, quorum, and unhealthy partitions."""

from collections import Counter
from typing import NamedTuple

from moldau.cli.admin import run_admin
from moldau.cli.console import make_table, out_console, pluralize, print_table
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap
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


def cluster_status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show the nodes of a cluster, its controller and quorum, and leaderless or under-replicated partitions."""

    async def operation(admin: Admin) -> ClusterState:
        return ClusterState(
            await admin.describe_cluster(fenced_too=True),
            await admin.describe_quorum(),
            await admin.list_topics(internal=True),
            len(await admin.list_reassignments()),
        )

    state = run_admin(operation, bootstrap)
    _print_nodes(state)
    quorum = state.quorum
    voters = ", ".join(str(each.node_id) for each in quorum.voters)
    out_console.print()
    out_console.print(f"cluster     {state.cluster.cluster_id}", markup=False)
    out_console.print(f"controller  node {quorum.leader_id}, epoch {quorum.epoch}")
    out_console.print(f"quorum      voters {voters}; committed up to {quorum.high_watermark}")
    _print_partitions(state)


def _print_nodes(state: ClusterState) -> None:
    partitions = [each for topic in state.topics for each in topic.partitions]
    leaders = Counter(each.leader for each in partitions)
    replicas = Counter(replica for each in partitions for replica in each.replicas)
    out_of_sync = Counter(replica for each in partitions for replica in each.replicas if replica not in each.in_sync)
    numbers = ("node", "leaders", "replicas", "out of sync", "metadata lag")
    rows = make_table("node", "address", "rack", "state", "quorum", *numbers[1:], numbers=numbers)
    fenced = {each.node_id for each in state.cluster.fenced}
    for broker in sorted(state.cluster.brokers + state.cluster.fenced):
        node_id = broker.node_id
        rows.add_row(
            str(node_id),
            f"{broker.host}:{broker.port}",
            broker.rack or "-",
            "down" if node_id in fenced else "up",
            _role(state.quorum, node_id),
            str(leaders[node_id]),
            str(replicas[node_id]),
            str(out_of_sync[node_id]),
            _metadata_lag(state.quorum, node_id),
        )
    print_table(rows)


def _role(quorum: QuorumInfo, node_id: int) -> str:
    if node_id == quorum.leader_id:
        return "leader"
    return "voter" if any(each.node_id == node_id for each in quorum.voters) else "observer"


def _metadata_lag(quorum: QuorumInfo, node_id: int) -> str:
    replica, leader = quorum.replica(node_id), quorum.replica(quorum.leader_id)
    if replica is None or leader is None or replica.end_offset < 0:
        return "-"
    return str(max(0, leader.end_offset - replica.end_offset))


def _print_partitions(state: ClusterState) -> None:
    partitions = [(f"{topic.name}-{each.index}", each) for topic in state.topics for each in topic.partitions]
    leaderless = [name for name, each in partitions if each.leader < 0]
    without_isr = [name for name, each in partitions if each.leader < 0 and not each.in_sync]
    under_replicated = [name for name, each in partitions if len(each.in_sync) < len(each.replicas)]
    out_console.print(f"partitions  {len(partitions)} in {pluralize(len(state.topics), 'topic')}")
    for problem, names in (
        ("without a leader", leaderless),
        ("without an in-sync replica", without_isr),
        ("under-replicated", under_replicated),
    ):
        if names:
            more = f" and {len(names) - PARTITIONS_SHOWN_MAX} more" if len(names) > PARTITIONS_SHOWN_MAX else ""
            out_console.print(
                f"            {len(names)} {problem}: {', '.join(names[:PARTITIONS_SHOWN_MAX])}{more}", markup=False
            )
    if state.reassignment_count:
        out_console.print(f"            {state.reassignment_count} being reassigned")
    if not leaderless and not under_replicated:
        out_console.print("            all partitions have a leader and all replicas are in sync")
