"""Which versions of each API this client speaks, and which of them it uses with a given broker.

Wherever a version names topics by id alone, the client stays below it: it works with names. The lowest
versions are those from which on one shape of request serves all (Kafka 3.0 has them).
"""

from collections.abc import Mapping
from typing import NamedTuple

from moldau.client.errors import UnsupportedVersionError
from moldau.wire.api_keys import ApiKey


class Versions(NamedTuple):
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


VERSIONS: Mapping[ApiKey, Versions] = {
    ApiKey.PRODUCE: Versions(7, 12),
    ApiKey.FETCH: Versions(11, 12),
    ApiKey.LIST_OFFSETS: Versions(7, 11),
    ApiKey.METADATA: Versions(10, 13),
    ApiKey.OFFSET_COMMIT: Versions(7, 9),
    ApiKey.OFFSET_FETCH: Versions(8, 9),
    ApiKey.FIND_COORDINATOR: Versions(4, 6),
    ApiKey.JOIN_GROUP: Versions(5, 9),
    ApiKey.HEARTBEAT: Versions(3, 4),
    ApiKey.LEAVE_GROUP: Versions(3, 5),
    ApiKey.SYNC_GROUP: Versions(3, 5),
    ApiKey.DESCRIBE_GROUPS: Versions(4, 6),
    ApiKey.LIST_GROUPS: Versions(4, 5),
    ApiKey.SASL_HANDSHAKE: Versions(1, 1),
    ApiKey.API_VERSIONS: Versions(0, 4),
    ApiKey.CREATE_TOPICS: Versions(5, 7),
    ApiKey.DELETE_TOPICS: Versions(6, 6),
    ApiKey.DELETE_RECORDS: Versions(0, 2),
    ApiKey.INIT_PRODUCER_ID: Versions(3, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Versions(3, 4),
    ApiKey.DESCRIBE_CONFIGS: Versions(1, 4),
    ApiKey.DESCRIBE_LOG_DIRS: Versions(3, 5),
    ApiKey.SASL_AUTHENTICATE: Versions(0, 2),
    ApiKey.CREATE_PARTITIONS: Versions(0, 3),
    ApiKey.DELETE_GROUPS: Versions(0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Versions(0, 1),
    ApiKey.OFFSET_DELETE: Versions(0, 0),
    ApiKey.ELECT_LEADERS: Versions(2, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Versions(0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Versions(0, 0),
    ApiKey.VOTE: Versions(2, 2),
    ApiKey.BEGIN_QUORUM_EPOCH: Versions(1, 1),
    ApiKey.END_QUORUM_EPOCH: Versions(1, 1),
    ApiKey.DESCRIBE_QUORUM: Versions(2, 2),
    ApiKey.ALTER_PARTITION: Versions(3, 3),
    ApiKey.ENVELOPE: Versions(0, 0),
    ApiKey.FETCH_SNAPSHOT: Versions(1, 1),
    ApiKey.DESCRIBE_CLUSTER: Versions(0, 2),
    ApiKey.BROKER_REGISTRATION: Versions(4, 4),
    ApiKey.BROKER_HEARTBEAT: Versions(1, 1),
    ApiKey.UNREGISTER_BROKER: Versions(0, 0),
    ApiKey.ALLOCATE_PRODUCER_IDS: Versions(0, 0),
    ApiKey.ADD_RAFT_VOTER: Versions(0, 1),
    ApiKey.REMOVE_RAFT_VOTER: Versions(0, 0),
    ApiKey.UPDATE_RAFT_VOTER: Versions(0, 0),
}


def choose(api: ApiKey, offered: Mapping[int, Versions], version_max: int | None = None) -> int:
    """The highest version both sides speak, at most `version_max`; raises UnsupportedVersionError."""
    ours = VERSIONS[api]
    theirs = offered.get(api)
    if theirs is None:
        raise UnsupportedVersionError(f"the broker does not have {api.name}")
    high = min(ours.high, theirs.high)
    if version_max is not None:
        high = min(high, version_max)
    if high < max(ours.low, theirs.low):
        at_most = "" if version_max is None else f", here at most {version_max}"
        raise UnsupportedVersionError(
            f"{api.name}: this client speaks versions {ours}{at_most}, and the broker {theirs}"
        )
    return high


def check_offered(api: ApiKey, offered: Mapping[int, Versions], version: int) -> None:
    """Raises UnsupportedVersionError where the broker does not have exactly this version."""
    theirs = offered.get(api)
    if theirs is None:
        raise UnsupportedVersionError(f"the broker does not have {api.name}")
    if not theirs.low <= version <= theirs.high:
        raise UnsupportedVersionError(f"{api.name}: version {version} is needed, and the broker has {theirs}")
