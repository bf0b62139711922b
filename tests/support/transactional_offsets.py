"""The offsets of a group that a transactional producer commits, as raw messages."""

from typing import Any

from support.raw_group_member import OFFSET_FETCH, find_coordinator
from support.raw_group_member import commit as commit_plain
from support.topics import unique
from support.transaction_wire import ADD_OFFSETS, NONE, RETRIABLE, Coordinator, Producer, until
from support.wire import WireClient

TXN_OFFSET_COMMIT = 28
UNSTABLE_OFFSET_COMMIT = 88
NO_OFFSET = -1
UNSTABLE = "unstable"


class TransactionalGroup:
    """The offsets of one group, committed by the producer of one transactional id."""

    def __init__(self, client: WireClient, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.id = unique("group")
        find_coordinator(client, self.id)
        self.transaction = Coordinator(client)

    def add(self, producer: Producer) -> None:
        """Adds the group to the transaction, as clients with TV1 do."""
        tree = {
            "transactional_id": self.transaction.id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "group_id": self.id,
        }
        assert until(lambda: self.client.request(ADD_OFFSETS, 3, tree), *RETRIABLE)["error_code"] == NONE

    def commit_codes(
        self, producer: Producer, offsets: dict[int, int], *, version: int = 5, metadata: str = "note", **more: Any
    ) -> list[int]:
        partitions = [
            {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
            for index, offset in offsets.items()
        ]
        tree = {
            "transactional_id": self.transaction.id,
            "group_id": self.id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "topics": [{"name": self.topic, "partitions": partitions}],
            **more,
        }
        if version >= 3:
            tree = {"generation_id": -1, "member_id": "", "group_instance_id": None, **tree}
        answer = self.client.request(TXN_OFFSET_COMMIT, version, tree)
        found = {
            each["partition_index"]: each["error_code"] for topic in answer["topics"] for each in topic["partitions"]
        }
        return [found[each["partition_index"]] for topic in tree["topics"] for each in topic["partitions"]]

    def commit(self, producer: Producer, offsets: dict[int, int], **more: Any) -> None:
        """Retries while the previous transaction is being completed, as clients do."""
        response = until(lambda: {"error_code": max(self.commit_codes(producer, offsets, **more))}, *RETRIABLE)
        assert response["error_code"] == NONE

    def commit_plain(self, offsets: dict[int, int]) -> None:
        assert set(commit_plain(self.client, self.id, self.topic, *offsets.items())) == {NONE}

    def end(self, producer: Producer, *, commit: bool, version: int = 5) -> Producer:
        """Ends the transaction and waits until it is complete. Returns the producer of the next transaction."""
        response = until(lambda: self.transaction.end_response(producer, commit=commit, version=version), *RETRIABLE)
        assert response["error_code"] == NONE
        self.transaction.wait_for("CompleteCommit" if commit else "CompleteAbort")
        return (response["producer_id"], response["producer_epoch"]) if version >= 5 else producer

    def offsets(self, *partitions: int, stable: bool = True, version: int = 9) -> list[int | str]:
        """Returns the committed offset of each partition, or UNSTABLE."""
        topics = [{"name": self.topic, "partition_indexes": list(partitions)}]
        answer = self._fetch(topics, stable=stable, version=version)
        found = {each["partition_index"]: each for topic in answer for each in topic["partitions"]}
        return [_shown(found[index]) for index in partitions]

    def all_offsets(self, *, stable: bool = True) -> dict[int, int | str]:
        answer = self._fetch(None, stable=stable, version=9)
        return {each["partition_index"]: _shown(each) for topic in answer for each in topic["partitions"]}

    def _fetch(self, topics: list[Any] | None, *, stable: bool, version: int) -> list[Any]:
        tree: dict[str, Any] = {"group_id": self.id, "topics": topics, "require_stable": stable}
        if version >= 8:
            group = {"group_id": self.id, "member_id": None, "member_epoch": -1, "topics": topics}
            tree = {"groups": [group], "require_stable": stable}
        answer = self.client.request(OFFSET_FETCH, version, tree)
        result = answer["groups"][0] if version >= 8 else answer
        assert result["error_code"] == NONE
        topics_of_result: list[Any] = result["topics"]
        return topics_of_result


def _shown(partition: dict[str, Any]) -> int | str:
    if partition["error_code"]:
        assert partition["error_code"] == UNSTABLE_OFFSET_COMMIT
        assert (partition["committed_offset"], partition["metadata"]) == (NO_OFFSET, "")
        return UNSTABLE
    return int(partition["committed_offset"])
