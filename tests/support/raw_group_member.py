"""Group members on plain sockets, which send any request, valid or not."""

import struct
import time
from typing import Any

from support.wire import WireClient

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT = 8, 9, 10, 11, 12
LEAVE_GROUP, SYNC_GROUP, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE = 13, 14, 15, 16, 42, 47

NOT_COORDINATOR, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 16, 27, 79
TIMEOUT_S = 30
COORDINATOR_NOT_READY = (14, 15, NOT_COORDINATOR)
"""The coordinator is being found, created or loaded."""

Tree = dict[str, Any]


def find_coordinator(wire: WireClient, group_id: str) -> None:
    """Waits until the group's coordinator has loaded it; other brokers than Moldau take a while."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        answer = wire.request(FIND_COORDINATOR, 2, {"key": group_id, "key_type": 0})
        code = answer["error_code"] or wire.request(OFFSET_FETCH, 7, {"group_id": group_id, "topics": []})["error_code"]
        if code not in COORDINATOR_NOT_READY:
            assert code == 0
            return
        assert time.monotonic() < deadline, f"no coordinator: {answer}"
        time.sleep(0.05)


def subscription(*topics: str) -> bytes:
    """Encodes a subscription in its oldest version. Kafka does not respond to a group with one that it cannot
    decode."""
    names = [struct.pack(">h", len(name)) + name.encode() for name in topics]
    return struct.pack(">hi", 0, len(names)) + b"".join(names) + struct.pack(">i", -1)


def join_tree(group_id: str, member_id: str = "", **more: Any) -> Tree:
    return {
        "group_id": group_id,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription()}],
        **more,
    }


def sync_tree(group_id: str, member_id: str, generation: int, **more: Any) -> Tree:
    return {
        "group_id": group_id,
        "generation_id": generation,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
        **more,
    }


def commit_tree(group_id: str, topic: str, *offsets: tuple[int, int], **more: Any) -> Tree:
    """`offsets` are pairs of partition and offset. Without `more` it is a commit outside of a membership."""
    metadata = more.pop("metadata", "where I am")
    partitions = [
        {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
        for index, offset in offsets
    ]
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": -1,
        "topics": [{"name": topic, "partitions": partitions}],
        **more,
    }


def codes_of(answer: Tree) -> list[int]:
    """Returns the error codes of a commit response."""
    return [each["error_code"] for topic in answer["topics"] for each in topic["partitions"]]


def commit(wire: WireClient, group_id: str, topic: str, *offsets: tuple[int, int], **more: Any) -> list[int]:
    version = more.pop("version", 7)
    return codes_of(wire.request(OFFSET_COMMIT, version, commit_tree(group_id, topic, *offsets, **more)))


def committed(wire: WireClient, group_id: str) -> dict[tuple[str, int], int]:
    """Returns all committed offsets of a group."""
    answer = wire.request(OFFSET_FETCH, 7, {"group_id": group_id, "topics": None, "require_stable": True})
    assert answer["error_code"] == 0
    return {
        (topic["name"], each["partition_index"]): each["committed_offset"]
        for topic in answer["topics"]
        for each in topic["partitions"]
    }


class RawGroupMember:
    """A member with its own connection."""

    def __init__(self, bootstrap: str, group_id: str, *, client_id: str = "raw", **join: Any) -> None:
        self.wire = WireClient(bootstrap, client_id=client_id)
        self.group_id = group_id
        self.member_id = ""
        self.generation = -1
        self._join = join

    def send_join(self, version: int = 5) -> None:
        """Sends a join request; `receive_join` receives the response."""
        self.wire.send(JOIN_GROUP, version, join_tree(self.group_id, self.member_id, **self._join))

    def receive_join(self, version: int = 5) -> Tree:
        _, answer = self.wire.receive(JOIN_GROUP, version)
        self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        return answer

    def join(self, version: int = 5) -> Tree:
        """Joins, with the second request that new members need."""
        self.send_join(version)
        answer = self.receive_join(version)
        if answer["error_code"] == MEMBER_ID_REQUIRED:
            self.send_join(version)
            answer = self.receive_join(version)
        return answer

    def sync(self, *member_ids: str) -> Tree:
        """Sends a sync request, with assignments for these members if this one is the leader."""
        assignments = [{"member_id": each, "assignment": each.encode()} for each in member_ids]
        tree = sync_tree(self.group_id, self.member_id, self.generation, assignments=assignments)
        return self.wire.request(SYNC_GROUP, 5, tree)

    def join_alone(self) -> "RawGroupMember":
        """Joins and syncs as the only member."""
        assert self.join()["error_code"] == 0
        assert self.sync(self.member_id)["error_code"] == 0
        return self

    def heartbeat(self, **more: Any) -> int:
        tree = {"group_id": self.group_id, "generation_id": self.generation, "member_id": self.member_id, **more}
        code: int = self.wire.request(HEARTBEAT, 4, tree)["error_code"]
        return code

    def heartbeat_until_rebalance(self) -> None:
        """Sends heartbeats until the group rebalances."""
        deadline = time.monotonic() + TIMEOUT_S
        while (code := self.heartbeat()) == 0:
            assert time.monotonic() < deadline, "nothing has made the group rebalance"
        assert code == REBALANCE_IN_PROGRESS

    def commit(self, topic: str, *offsets: tuple[int, int], **more: Any) -> list[int]:
        who = {"member_id": self.member_id, "generation_id_or_member_epoch": self.generation}
        return commit(self.wire, self.group_id, topic, *offsets, **{**who, **more})

    def leave(self) -> int:
        tree = {"group_id": self.group_id, "members": [{"member_id": self.member_id}]}
        code: int = self.wire.request(LEAVE_GROUP, 4, tree)["members"][0]["error_code"]
        return code

    def close(self) -> None:
        self.wire.close()

    def __enter__(self) -> "RawGroupMember":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
