"""The API versions that this client supports, and the choice of a version for each broker.

The client addresses topics by name, so it does not use versions that accept only topic ids. The minimum version of each
request is high enough that one form of the request fits all supported versions. Kafka 3.0 and later support the minimum
versions of the producer and consumer requests.
"""

from collections.abc import Mapping
from typing import NamedTuple

from moldau.client.errors import UnsupportedVersionError
from moldau.wire.api_keys import ApiKey


class FinalizedFeatures(NamedTuple):
    """The features of a cluster that all its brokers use (KIP-584)."""

    epoch: int = -1
    """Grows with every change; -1 if the broker did not return features."""
    levels: Mapping[str, int] = {}


class VersionRange(NamedTuple):
    minimum: int
    maximum: int

    def __str__(self) -> str:
        return f"{self.minimum}-{self.maximum}"


SUPPORTED_VERSIONS: Mapping[ApiKey, VersionRange] = {
    ApiKey.PRODUCE: VersionRange(7, 12),
    ApiKey.FETCH: VersionRange(11, 12),
    ApiKey.LIST_OFFSETS: VersionRange(7, 11),
    ApiKey.METADATA: VersionRange(10, 13),
    ApiKey.OFFSET_COMMIT: VersionRange(7, 9),
    ApiKey.OFFSET_FETCH: VersionRange(8, 9),
    ApiKey.FIND_COORDINATOR: VersionRange(4, 6),
    ApiKey.JOIN_GROUP: VersionRange(5, 9),
    ApiKey.HEARTBEAT: VersionRange(3, 4),
    ApiKey.LEAVE_GROUP: VersionRange(3, 5),
    ApiKey.SYNC_GROUP: VersionRange(3, 5),
    ApiKey.DESCRIBE_GROUPS: VersionRange(4, 6),
    ApiKey.LIST_GROUPS: VersionRange(4, 5),
    ApiKey.SASL_HANDSHAKE: VersionRange(1, 1),
    ApiKey.API_VERSIONS: VersionRange(0, 4),
    ApiKey.CREATE_TOPICS: VersionRange(5, 7),
    ApiKey.DELETE_TOPICS: VersionRange(6, 6),
    ApiKey.DELETE_RECORDS: VersionRange(0, 2),
    ApiKey.INIT_PRODUCER_ID: VersionRange(3, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: VersionRange(3, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: VersionRange(3, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: VersionRange(3, 4),
    ApiKey.END_TXN: VersionRange(3, 5),
    ApiKey.WRITE_TXN_MARKERS: VersionRange(1, 2),
    ApiKey.TXN_OFFSET_COMMIT: VersionRange(3, 5),
    ApiKey.DESCRIBE_CONFIGS: VersionRange(1, 4),
    ApiKey.DESCRIBE_LOG_DIRS: VersionRange(3, 5),
    ApiKey.SASL_AUTHENTICATE: VersionRange(0, 2),
    ApiKey.CREATE_PARTITIONS: VersionRange(0, 3),
    ApiKey.DELETE_GROUPS: VersionRange(0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
    ApiKey.OFFSET_DELETE: VersionRange(0, 0),
    ApiKey.ELECT_LEADERS: VersionRange(2, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: VersionRange(0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: VersionRange(0, 0),
    ApiKey.VOTE: VersionRange(2, 2),
    ApiKey.BEGIN_QUORUM_EPOCH: VersionRange(1, 1),
    ApiKey.END_QUORUM_EPOCH: VersionRange(1, 1),
    ApiKey.DESCRIBE_QUORUM: VersionRange(2, 2),
    ApiKey.ALTER_PARTITION: VersionRange(3, 3),
    ApiKey.ENVELOPE: VersionRange(0, 0),
    ApiKey.FETCH_SNAPSHOT: VersionRange(1, 1),
    ApiKey.DESCRIBE_CLUSTER: VersionRange(0, 2),
    ApiKey.DESCRIBE_PRODUCERS: VersionRange(0, 0),
    ApiKey.BROKER_REGISTRATION: VersionRange(4, 4),
    ApiKey.BROKER_HEARTBEAT: VersionRange(1, 1),
    ApiKey.UNREGISTER_BROKER: VersionRange(0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: VersionRange(0, 0),
    ApiKey.LIST_TRANSACTIONS: VersionRange(0, 2),
    ApiKey.ALLOCATE_PRODUCER_IDS: VersionRange(0, 0),
    ApiKey.ADD_RAFT_VOTER: VersionRange(0, 1),
    ApiKey.REMOVE_RAFT_VOTER: VersionRange(0, 0),
    ApiKey.UPDATE_RAFT_VOTER: VersionRange(0, 0),
    ApiKey.INIT_TXN_GROUP_MEMBER: VersionRange(0, 0),
    ApiKey.END_TXN_GROUP: VersionRange(0, 0),
    ApiKey.DESCRIBE_REPLICA_PROGRESS: VersionRange(0, 0),
    ApiKey.DESCRIBE_PARTITION_LAG: VersionRange(0, 0),
    ApiKey.DESCRIBE_GROUP_LAG: VersionRange(0, 0),
}


def choose_version(
    api: ApiKey,
    broker_versions: Mapping[int, VersionRange],
    *,
    version_max: int | None = None,
    version: int | None = None,
) -> int:
    """Returns `version` if it is set, else the highest common version up to `version_max`.

    Raises UnsupportedVersionError if the broker does not support that version, or if there is no common version.
    """
    offered = broker_versions.get(api)
    if offered is None:
        raise UnsupportedVersionError(f"the broker does not support {api.name}")
    if version is not None:
        if not offered.minimum <= version <= offered.maximum:
            raise UnsupportedVersionError(f"{api.name}: version {version} is needed, the broker supports {offered}")
        return version
    supported = SUPPORTED_VERSIONS[api]
    maximum = min(supported.maximum, offered.maximum)
    if version_max is not None:
        maximum = min(maximum, version_max)
    if maximum < max(supported.minimum, offered.minimum):
        limit = "" if version_max is None else f", here at most {version_max}"
        raise UnsupportedVersionError(
            f"{api.name}: this client supports versions {supported}{limit}, the broker {offered}"
        )
    return maximum
