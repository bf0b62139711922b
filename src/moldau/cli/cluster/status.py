"""`moldau cluster status`: the nodes, who decides, and what is not as it should be."""

from collections import Counter
from typing import NamedTuple

from moldau.cli.cluster_access import out_console, pluralize, print_table, run_admin, table
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap
from moldau.client.admin.admin import Admin, ClusterDescription, QuorumInfo
from moldau.client.net.metadata import PartitionInfo, TopicInfo

PARTITIONS_SHOWN_MAX = 10
"""Partitions that are named one by one."""


class ClusterState(NamedTuple):
    cluster: ClusterDescription
    quorum: QuorumInfo
    topics: list[TopicInfo]
    moving: int


def cluster_status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show the nodes of a cluster, its controller and quorum, and partitions that lack replicas or a leader."""

    async def question(admin: Admin) -> ClusterState:
        return ClusterState(
            await admin.describe_cluster(fenced_too=True),
            await admin.describe_quorum(),
            await admin.list_topics(internal=True),
            len(await admin.list_reassignments()),
        )

    found = run_admin(question, bootstrap)
    _print_nodes(found)
    quorum = found.quorum
    voters = ", ".join(str(each.node_id) for each in quorum.voters)
    out_console.print()
    out_console.print(f"cluster     {found.cluster.cluster_id}", markup=False)
    out_console.print(f"controller  node {quorum.leader_id}, epoch {quorum.epoch}")
    out_console.print(f"quorum      voters {voters}; committed up to {quorum.high_watermark}")
    _print_partitions(found)


def _print_nodes(found: ClusterState) -> None:
    partitions = [each for topic in found.topics for each in topic.partitions]
    leaders = Counter(each.leader for each in partitions)
    replicas = Counter(replica for each in partitions for replica in each.replicas)
    behind = Counter(
        replica for each in partitions for replica in each.replicas if replica not in each.in_sync
    )
    numbers = ("node", "leaders", "replicas", "out of sync", "metadata lag")
    rows = table("node", "address", "rack", "state", "quorum", *numbers[1:], numbers=numbers)
    fenced = {each.node_id for each in found.cluster.fenced}
    for broker in sorted(found.cluster.brokers + found.cluster.fenced):
        node_id = broker.node_id
        rows.add_row(
            str(node_id),
            f"{broker.host}:{broker.port}",
            broker.rack or "-",
            "down" if node_id in fenced else "up",
            _role(found.quorum, node_id),
            str(leaders[node_id]),
            str(replicas[node_id]),
            str(behind[node_id]),
            _metadata_lag(found.quorum, node_id),
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


def _print_partitions(found: ClusterState) -> None:
    def named(topic: TopicInfo, partition: PartitionInfo) -> str:
        return f"{topic.name}-{partition.index}"

    every = [(topic, each) for topic in found.topics for each in topic.partitions]
    leaderless = [named(*each) for each in every if each[1].leader < 0]
    abandoned = [named(*each) for each in every if each[1].leader < 0 and not each[1].in_sync]
    under = [named(*each) for each in every if len(each[1].in_sync) < len(each[1].replicas)]
    out_console.print(f"partitions  {len(every)} of {pluralize(len(found.topics), 'topic')}")
    for what, names in (
        ("without a leader", leaderless),
        ("without a replica that is known to have all records", abandoned),
        ("under-replicated", under),
    ):
        if names:
            more = (
                f" and {len(names) - PARTITIONS_SHOWN_MAX} more" if len(names) > PARTITIONS_SHOWN_MAX else ""
            )
            out_console.print(
                f"            {len(names)} {what}: {', '.join(names[:PARTITIONS_SHOWN_MAX])}{more}",
                markup=False,
            )
    if found.moving:
        out_console.print(f"            {found.moving} being moved to other nodes")
    if not leaderless and not under:
        out_console.print("            all have a leader, and all replicas are in sync")
