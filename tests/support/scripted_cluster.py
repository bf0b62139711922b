"""A scripted cluster, and a loop in virtual time to run a consumer against it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import ConnectionLostError, ErrorCode
from moldau.client.net.cluster import Cluster
from moldau.client.net.metadata import PartitionInfo, TopicInfo
from moldau.client.record import TopicPartition
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from moldau.testing.simulation.platform.loop import SimulatedLoop
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message
from moldau.wire.consumer_protocol import Assignment, encode_assignment

HERE = TopicPartition("t", 0)
ScriptedResponse = Callable[[Mapping[str, Any]], Any]


def message(value: Any) -> Any:
    if isinstance(value, dict):
        return Message(**{name: message(each) for name, each in value.items()})
    return [message(each) for each in value] if isinstance(value, list) else value


class ScriptedCluster(Cluster):
    """One node that leads the topic `t` and coordinates every group.

    A test replaces the responses it is about; all requests but fetches are recorded in `sent`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__("nowhere:1", **settings)
        partitions = (PartitionInfo(0, 1, 0, (1,), (1,)),)
        self._known = {"t": TopicInfo("t", None, partitions)}
        self.sent: list[ApiKey] = []
        self.lanes: dict[ApiKey, str] = {}
        self.log: list[bytes] = []
        self.truncated_to: int | None = None
        """The offset to which the log was truncated after it had been read."""
        self.committed: dict[int, int] = {}
        self.is_unreachable = False
        """Whether fetches fail."""
        self.finds = 0
        self.fetches = 0
        self.generation = 0
        self.answers: dict[ApiKey, ScriptedResponse] = {
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: lambda _: {"error_code": 0, "assignment": encode_assignment(Assignment((("t", 0),)))},
            ApiKey.HEARTBEAT: lambda _: {"error_code": 0},
            ApiKey.LEAVE_GROUP: lambda _: {"error_code": 0, "members": []},
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.OFFSET_FETCH: self._committed,
            ApiKey.LIST_OFFSETS: lambda tree: {
                "topics": [
                    {
                        "name": "t",
                        "partitions": [
                            {
                                "partition_index": 0,
                                "error_code": 0,
                                "offset": 0 if tree["topics"][0]["partitions"][0]["timestamp"] == -2 else len(self.log),
                                "timestamp": -1,
                                "leader_epoch": 0,
                            }
                        ],
                    }
                ]
            },
        }

    async def start(self) -> None:
        pass

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        return self._known

    def partition_info(self, partition: TopicPartition) -> PartitionInfo | None:
        topic = self._known.get(partition.topic)
        return None if topic is None else topic.partition(partition.partition)

    def known_leader_of(self, partition: TopicPartition) -> int:
        found = self.partition_info(partition)
        return -1 if found is None else found.leader

    async def refresh(self, topics: Iterable[str] | None = None, **_: Any) -> None:
        await asyncio.sleep(0)

    async def _find_coordinator(self, key: str, kind: int, timeout_ms: int) -> int:
        self.finds += 1
        return 1

    async def call(
        self,
        node_id: int | None,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        version: int | None = None,
        lane: str = "",
    ) -> Message:
        await asyncio.sleep(0.001)
        self.lanes[api] = lane
        if api == ApiKey.FETCH:
            self.fetches += 1
            if self.is_unreachable:
                raise ConnectionLostError("away")
            return message(await self._fetch(tree))
        self.sent.append(api)
        answer = self.answers[api](tree)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return message(answer)

    async def _fetch(self, tree: Mapping[str, Any]) -> Any:
        offset = tree["topics"][0]["partitions"][0]["fetch_offset"]
        if self.truncated_to is not None and offset > self.truncated_to:
            return self._fetched(b"", diverging_epoch={"epoch": 0, "end_offset": self.truncated_to})
        code = ErrorCode.offset_out_of_range if offset > len(self.log) else ErrorCode.none
        if offset == len(self.log):
            await asyncio.sleep(tree["max_wait"] / 1000)
        records = [Record(value=value) for value in self.log[offset:]]
        return self._fetched(build_batch(records, base_offset=offset) if records else b"", error_code=code.value)

    def _fetched(self, batch: bytes, **fields: Any) -> Any:
        partition = {
            "partition_index": 0,
            "error_code": 0,
            "high_watermark": len(self.log),
            "last_stable_offset": len(self.log),
            "log_start_offset": 0,
            "aborted_transactions": None,
            "records": memoryview(batch),
            **fields,
        }
        return {"error_code": 0, "responses": [{"topic": "t", "partitions": [partition]}]}

    def _join(self, tree: Mapping[str, Any]) -> Any:
        self.generation += 1
        return {
            "error_code": 0,
            "generation_id": self.generation,
            "protocol_name": "range",
            "leader": "somebody else",
            "member_id": "m1",
            "members": [],
        }

    def _commit(self, tree: Mapping[str, Any]) -> Any:
        for each in tree["topics"][0]["partitions"]:
            self.committed[each["partition_index"]] = each["committed_offset"]
        return self.commit_response(ErrorCode.none)

    def commit_response(self, code: ErrorCode) -> Any:
        return {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "error_code": code.value}]}]}

    def _committed(self, tree: Mapping[str, Any]) -> Any:
        partition = {
            "partition_index": 0,
            "committed_offset": self.committed.get(0, -1),
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": 0,
        }
        group = {"group_id": "g", "error_code": 0, "topics": [{"name": "t", "partitions": [partition]}]}
        return {"groups": [group]}


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(scenario())  # type: ignore[arg-type]


def in_group(cluster: Cluster, **settings: Any) -> Consumer:
    return Consumer(cluster=cluster, group_id="g", **{"auto_offset_reset": "earliest", **settings})


async def subscribed(consumer: Consumer) -> None:
    """Subscribes and polls until assigned; only for a log without records, which it would drop."""
    consumer.subscribe(["t"])
    while not consumer.assignment:
        await consumer.poll(100)
