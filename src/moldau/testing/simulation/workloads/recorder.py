"""A cluster client that records every group request and its response in a history.

Recording happens below the client library, so that requests of consumers and single requests are recorded in the same
way.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from moldau.client.net.cluster import Cluster
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_groups import (
    ClientOperation,
    CommitOperation,
    DeleteOperation,
    GroupHistory,
    HeartbeatOperation,
    JoinOperation,
    OffsetFetchOperation,
    OperationResult,
    RequestIdentity,
    SyncOperation,
)
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message
from moldau.wire.consumer_protocol import decode_assignment
from moldau.wire.kio import ErrorCode

DEFINITE_FAILURES = (
    ErrorCode.illegal_generation,
    ErrorCode.unknown_member_id,
    ErrorCode.fenced_instance_id,
    ErrorCode.rebalance_in_progress,
    ErrorCode.group_id_not_found,
    ErrorCode.group_subscribed_to_topic,
    ErrorCode.non_empty_group,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.unknown_topic_or_partition,
)
"""Error codes after which the request definitely had no effect. Other error codes leave this open."""

SendRequest = Callable[[Mapping[str, Any]], Awaitable[Message]]
Recorder = Callable[[Mapping[str, Any], int, SendRequest], Awaitable[Message]]
"""Sends and records a request. The arguments are the request, the invocation time and the function that sends it."""


class RecordingCluster(Cluster):
    def __init__(self, bootstrap: str, history: GroupHistory, **options: Any) -> None:
        super().__init__(bootstrap, **options)
        self.history = history
        self.feature_level_max: int | None = None
        """The maximum level of features that the client knows. Older clients know lower levels."""
        self._recorders: Mapping[ApiKey, Recorder] = {
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.OFFSET_FETCH: self._fetch_offsets,
            ApiKey.OFFSET_DELETE: self._delete_offsets,
            ApiKey.DELETE_GROUPS: self._delete_groups,
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._sync,
            ApiKey.HEARTBEAT: self._heartbeat,
        }

    def feature_level(self, name: str) -> int:
        level = super().feature_level(name)
        return level if self.feature_level_max is None else min(level, self.feature_level_max)

    async def call(self, node_id: int | None, api: ApiKey, tree: Mapping[str, Any], **options: Any) -> Message:
        call = super().call

        def send(tree: Mapping[str, Any]) -> Awaitable[Message]:
            return call(node_id, api, tree, **options)

        record = self._recorders.get(api)
        return await (send(tree) if record is None else record(tree, self.history.next_event(), send))

    async def _commit(self, tree: Mapping[str, Any], invoked_at: int, send: SendRequest) -> Message:
        tagged = deepcopy(dict(tree))
        commits: dict[Partition, CommitOperation] = {}
        for topic in tagged["topics"]:
            for each in topic["partitions"]:
                each["committed_metadata"] = tag = f"{self.client_id} at {invoked_at}"
                partition = topic["name"], each["partition_index"]
                commits[partition] = CommitOperation(
                    invoked_at=invoked_at,
                    tag=tag,
                    identity=_identity(tree, "generation_id_or_member_epoch"),
                    partition=partition,
                    offset=each["committed_offset"],
                )
        self.history.commits += commits.values()
        response = await send(tagged)
        completed_at = self.history.next_event()
        for partition, each in _partitions(response):
            _complete(commits[partition], each.error_code, completed_at)
        return response

    async def _fetch_offsets(self, tree: Mapping[str, Any], invoked_at: int, send: SendRequest) -> Message:
        response = await send(tree)
        completed_at = self.history.next_event()
        self.history.offset_fetches += [
            OffsetFetchOperation(
                group=group.group_id,
                partition=partition,
                invoked_at=invoked_at,
                completed_at=completed_at,
                offset=each.committed_offset,
                tag=each.metadata or "",
            )
            for group in response.groups
            for partition, each in _partitions(group)
            if ErrorCode.none == group.error_code == each.error_code
        ]
        return response

    async def _delete_offsets(self, tree: Mapping[str, Any], invoked_at: int, send: SendRequest) -> Message:
        partitions = [
            (topic["name"], each["partition_index"]) for topic in tree["topics"] for each in topic["partitions"]
        ]
        deletions = {
            partition: DeleteOperation(invoked_at=invoked_at, group=tree["group_id"], partition=partition)
            for partition in partitions
        }
        self.history.deletions += deletions.values()
        response = await send(tree)
        completed_at = self.history.next_event()
        if response.error_code != ErrorCode.none:
            for deletion in deletions.values():
                _complete(deletion, response.error_code, completed_at)
        for partition, each in _partitions(response):
            _complete(deletions[partition], each.error_code, completed_at)
        return response

    async def _delete_groups(self, tree: Mapping[str, Any], invoked_at: int, send: SendRequest) -> Message:
        deletions = {
            name: DeleteOperation(invoked_at=invoked_at, group=name, partition=None) for name in tree["groups_names"]
        }
        self.history.deletions += deletions.values()
        response = await send(tree)
        completed_at = self.history.next_event()
        for each in response.results:
            _complete(deletions[each.group_id], each.error_code, completed_at)
        return response

    async def _join(self, tree: Mapping[str, Any], invoked_at: int, send: SendRequest) -> Message:
        response = await send(tree)
        if response.error_code == ErrorCode.none and response.member_id != tree["member_id"]:
            self.history.joins.append(
                JoinOperation(
                    **self._success(invoked_at),
                    group=tree["group_id"],
                    instance_id=tree["group_instance_id"],
                    member=response.member_id,
                )
            )
        return response

    async def _sync(self, tree: Mapping[str, Any], invoked_at: int, send: SendRequest) -> Message:
        response = await send(tree)
        if response.error_code == ErrorCode.none:
            identity = _identity(tree, "generation_id")
            partitions = decode_assignment(response.assignment).partitions
            self.history.syncs.append(
                SyncOperation(**self._success(invoked_at), identity=identity, partitions=partitions)
            )
        return response

    async def _heartbeat(self, tree: Mapping[str, Any], invoked_at: int, send: SendRequest) -> Message:
        response = await send(tree)
        if response.error_code == ErrorCode.none:
            identity = _identity(tree, "generation_id")
            self.history.heartbeats.append(HeartbeatOperation(**self._success(invoked_at), identity=identity))
        return response

    def _success(self, invoked_at: int) -> dict[str, Any]:
        """Returns the fields of an operation that has now completed successfully."""
        return {"invoked_at": invoked_at, "completed_at": self.history.next_event(), "result": OperationResult.OK}


def _partitions(response: Message) -> Iterator[tuple[Partition, Message]]:
    for topic in response.topics:
        for each in topic.partitions:
            yield (topic.name, each.partition_index), each


def _identity(tree: Mapping[str, Any], generation: str) -> RequestIdentity:
    return RequestIdentity(tree["group_id"], tree[generation], tree["member_id"], tree["group_instance_id"])


def _complete(operation: ClientOperation, code: int, completed_at: int) -> None:
    if code == ErrorCode.none:
        operation.result, operation.completed_at = OperationResult.OK, completed_at
    elif code in DEFINITE_FAILURES:
        operation.result, operation.completed_at = OperationResult.FAIL, completed_at
