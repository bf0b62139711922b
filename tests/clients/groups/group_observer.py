"""What the broker itself says of a group, asked on a plain socket: the state it is in, its members and its
generation, whichever library the members use."""

import struct
from dataclasses import dataclass
from typing import Any

from group_member import Partition, eventually

from support.wire import WireClient

FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 10, 11, 12, 13, 14
OFFSET_COMMIT, OFFSET_FETCH, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS = 8, 9, 15, 16, 42

NONE, OFFSET_METADATA_TOO_LARGE, COORDINATOR_NOT_AVAILABLE = 0, 12, 15
ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS = 22, 25, 27
NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, MEMBER_ID_REQUIRED, FENCED_INSTANCE_ID = 68, 69, 79, 82
GROUP_SUBSCRIBED_TO_TOPIC = 86

GENERATIONS_MAX = 200


@dataclass(frozen=True)
class SeenMember:
    member_id: str
    client_id: str
    instance_id: str | None
    assignment: frozenset[Partition]


@dataclass(frozen=True)
class Seen:
    state: str
    protocol: str
    members: tuple[SeenMember, ...]


class Observer:
    def __init__(self, bootstrap: str) -> None:
        self.wire = WireClient(bootstrap)

    def describe(self, group: str) -> Seen:
        (found,) = self.wire.request(DESCRIBE_GROUPS, 5, {"groups": [group]})["groups"]
        members = [
            SeenMember(
                each["member_id"],
                each["client_id"],
                each["group_instance_id"],
                assigned_partitions(each["member_assignment"]),
            )
            for each in found["members"]
        ]
        return Seen(found["group_state"], found["protocol_data"], tuple(members))

    def generation(self, group: str) -> int:
        """Found with heartbeats: the broker says of every generation whether it is the present one."""
        seen = self.describe(group)
        assert seen.state == "Stable", seen
        member = seen.members[0]
        for generation in range(GENERATIONS_MAX):
            code = self.heartbeat(group, generation, member.member_id)
            if code != ILLEGAL_GENERATION:
                assert code == NONE, f"the heartbeat of a stable group's member was answered with {code}"
                return generation
        raise AssertionError(f"no generation below {GENERATIONS_MAX} is the group's")

    def heartbeat(self, group: str, generation: int, member_id: str, instance_id: str | None = None) -> int:
        asked = {
            "group_id": group,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": instance_id,
        }
        code: int = self.wire.request(HEARTBEAT, 4, asked)["error_code"]
        return code

    def close(self) -> None:
        self.wire.close()


def subscription(*topics: str) -> bytes:
    """The metadata of a consumer that subscribes to topics: the consumer protocol's version 0."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def assigned_partitions(data: bytes) -> frozenset[Partition]:
    """The partitions in an assignment of the consumer protocol, in any version: later ones only add at the end."""
    if not data:
        return frozenset()
    found: list[Partition] = []
    (_, topics), at = struct.unpack_from(">hi", data), 6
    for _ in range(topics):
        (size,) = struct.unpack_from(">h", data, at)
        name = data[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (count,) = struct.unpack_from(">i", data, at)
        found += [(name, partition) for partition in struct.unpack_from(f">{count}i", data, at + 4)]
        at += 4 + 4 * count
    return frozenset(found)


class RawMember:
    """A member that sends exactly what the test says, and no heartbeat unless it is told to."""

    def __init__(self, bootstrap: str, group: str, session_timeout_ms: int = 15_000) -> None:
        self.bootstrap = bootstrap
        self.wire = WireClient(bootstrap)
        self.group = group
        self.session_timeout_ms = session_timeout_ms
        self.member_id = ""
        self.generation = -1
        self.leads = False
        eventually(self._has_coordinator, "the group has no coordinator")

    def _has_coordinator(self) -> bool:
        # The first to ask has the topic for the offsets created, where it is not there.
        asked = {"key_type": 0, "coordinator_keys": [self.group]}
        (found,) = self.wire.request(FIND_COORDINATOR, 4, asked)["coordinators"]
        assert found["error_code"] in (NONE, COORDINATOR_NOT_AVAILABLE), found
        # One that was named may still have to load the group: until then it knows of no member, not even of none.
        return found["error_code"] == NONE and self.heartbeat(0, "nobody") == UNKNOWN_MEMBER_ID

    def ask_to_join(self) -> None:
        protocol = {"name": "range", "metadata": subscription("any")}
        asked = {
            "group_id": self.group,
            "session_timeout": self.session_timeout_ms,
            "rebalance_timeout": 15_000,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [protocol],
        }
        self.wire.send(JOIN_GROUP, 7, asked)

    def joined(self) -> dict[str, Any]:
        """The answer to the last request to join."""
        _, answer = self.wire.receive(JOIN_GROUP, 7)
        if answer["error_code"] in (NONE, MEMBER_ID_REQUIRED):
            self.member_id = answer["member_id"]
        if answer["error_code"] == NONE:
            self.generation = answer["generation_id"]
            self.leads = answer["leader"] == self.member_id
        return answer

    def get_member_id(self) -> None:
        self.ask_to_join()
        answer = self.joined()
        assert answer["error_code"] == MEMBER_ID_REQUIRED, answer

    def join(self) -> dict[str, Any]:
        """Joins as a client does: once for a member id, once more with it."""
        if not self.member_id:
            self.get_member_id()
        self.ask_to_join()
        return self.joined()

    def sync(self, assignments: dict[str, bytes], generation: int | None = None) -> dict[str, Any]:
        asked = {
            "group_id": self.group,
            "generation_id": self.generation if generation is None else generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": member_id, "assignment": data} for member_id, data in assignments.items()],
        }
        return self.wire.request(SYNC_GROUP, 5, asked)

    def heartbeat(self, generation: int | None = None, member_id: str | None = None) -> int:
        asked = {
            "group_id": self.group,
            "generation_id": self.generation if generation is None else generation,
            "member_id": self.member_id if member_id is None else member_id,
            "group_instance_id": None,
        }
        code: int = self.wire.request(HEARTBEAT, 4, asked)["error_code"]
        return code

    def commit(self, topic: str, offset: int, generation: int | None = None, member_id: str | None = None) -> int:
        partition = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        asked = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.generation if generation is None else generation,
            "member_id": self.member_id if member_id is None else member_id,
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [partition]}],
        }
        answer = self.wire.request(OFFSET_COMMIT, 8, asked)
        code: int = answer["topics"][0]["partitions"][0]["error_code"]
        return code

    def leave(self, member_id: str | None = None) -> int:
        wanted = {"member_id": self.member_id if member_id is None else member_id, "group_instance_id": None}
        answer = self.wire.request(LEAVE_GROUP, 4, {"group_id": self.group, "members": [wanted]})
        code: int = answer["error_code"] or answer["members"][0]["error_code"]
        return code

    def close(self) -> None:
        self.wire.close()
