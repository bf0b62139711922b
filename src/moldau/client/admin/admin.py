"""The admin client: topics, partitions, configs, brokers, the quorum and groups.

Methods about many things give a mapping from each to its result or KafkaError; those about one thing raise it.

    async with Admin("localhost:9092") as admin:
        await admin.create_topic("orders", partitions=3)
        for group in await admin.list_groups(): ...
"""

from moldau.client.admin.cluster import (
    ClusterAdmin,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    LogDir,
    LogDirReplica,
    Operation,
    ResourceType,
)
from moldau.client.admin.groups import (
    GroupAdmin,
    GroupDescription,
    GroupListing,
    MemberDescription,
    MemberToRemove,
)
from moldau.client.admin.partitions import ElectionType, OngoingReassignment, PartitionAdmin
from moldau.client.admin.quorum import NodeEndpoint, QuorumAdmin, QuorumInfo, QuorumReplica
from moldau.client.admin.topics import CreatedTopic, NewTopic, TopicAdmin
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, MAX_TIMESTAMP

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "ClusterDescription",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "CreatedTopic",
    "ElectionType",
    "GroupDescription",
    "GroupListing",
    "LogDir",
    "LogDirReplica",
    "MemberDescription",
    "MemberToRemove",
    "NewTopic",
    "NodeEndpoint",
    "OngoingReassignment",
    "Operation",
    "QuorumInfo",
    "QuorumReplica",
    "ResourceType",
]


class Admin(TopicAdmin, PartitionAdmin, ClusterAdmin, QuorumAdmin, GroupAdmin):
    """Use it in `async with`, or start it before use and close it after."""
