"""A cluster client that records every group request and its response in a history.

Recording happens below the client library, so that requests of consumers and single requests are recorded in the same
way.
"""

from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from typing import Any

from moldau.client.net.cluster import Cluster
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
"""Error codes after which the request definitely had no effect. After other error codes, the request may have had an
effect."""

SendRequest = Callable[[Mapping[str, Any]], Awaitable[Message]]


class RecordingCluster(Cluster):
    def __init__(self, bootstrap: str, history: GroupHistory, **options: Any) -> None:
        super().__init__(bootstrap, **options)
        self._history = history
        self._recorders: Mapping[ApiKey, Callable[[Mapping[str, Any], SendRequest], Awaitable[Message]]] = {
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.OFFSET_FETCH: self._fetch_offsets,
            ApiKey.OFFSET_DELETE: self._delete_offsets,
            ApiKey.DELETE_GROUPS: self._delete_groups,
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._sync,
            ApiKey.HEARTBEAT: self._heartbeat,
        }

    async def call(
        self,
        node_id: int | None,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        lane: str = "",
    ) -> Message:
        async def send(tree: Mapping[str, Any]) -> Message:
            return await super(RecordingCluster, self).call(
                node_id, api, tree, timeout_ms=timeout_ms, version_max=version_max, lane=lane
            )

        record = self._recorders.get(api)
        return await (send(tree) if record is None else record(tree, send))

    async def _commit(self, tree: Mapping[str, Any], send: SendRequest) -> Message:
        invoked_at = self._history.next_event()
        identity = _identity(tree, "generation_id_or_member_epoch")
        stamped = deepcopy(dict(tree))
        commits: dict[tuple[str, int], CommitOperation] = {}
        for topic in stamped["topics"]:
            for each in topic["partitions"]:
                each["committed_metadata"] = tag = f"{self.client_id} at {invoked_at}"
                partition = topic["name"], each["partition_index"]
                commits[partition] = CommitOperation(
                    invoked_at=invoked_at,
                    tag=tag,
                    identity=identity,
                    partition=partition,
                    offset=each["committed_offset"],
                )
        self._history.commits += commits.values()
        response = await send(stamped)
        completed_at = self._history.next_event()
        for topic in response.topics:
            for each in topic.partitions:
                _complete(commits[topic.name, each.partition_index], each.error_code, completed_at)
        return response

    async def _fetch_offsets(self, tree: Mapping[str, Any], send: SendRequest) -> Message:
        invoked_at = self._history.next_event()
        response = await send(tree)
        completed_at = self._history.next_event()
        for group in response.groups:
            for topic in group.topics:
                for each in topic.partitions:
                    if ErrorCode.none == group.error_code == each.error_code:
                        self._history.offset_fetches.append(
                            OffsetFetchOperation(
                                group=group.group_id,
                                partition=(topic.name, each.partition_index),
                                invoked_at=invoked_at,
                                completed_at=completed_at,
                                offset=each.committed_offset,
                                tag=each.metadata or "",
                            )
                        )
        return response

    async def _delete_offsets(self, tree: Mapping[str, Any], send: SendRequest) -> Message:
        invoked_at = self._history.next_event()
        deletions = {
            (topic["name"], each["partition_index"]): DeleteOperation(
                invoked_at=invoked_at, group=tree["group_id"], partition=(topic["name"], each["partition_index"])
            )
            for topic in tree["topics"]
            for each in topic["partitions"]
        }
        self._history.deletions += deletions.values()
        response = await send(tree)
        completed_at = self._history.next_event()
        if response.error_code != ErrorCode.none:
            for deletion in deletions.values():
                _complete(deletion, response.error_code, completed_at)
        for topic in response.topics:
            for each in topic.partitions:
                _complete(deletions[topic.name, each.partition_index], each.error_code, completed_at)
        return response

    async def _delete_groups(self, tree: Mapping[str, Any], send: SendRequest) -> Message:
        invoked_at = self._history.next_event()
        deletions = {
            name: DeleteOperation(invoked_at=invoked_at, group=name, partition=None) for name in tree["groups_names"]
        }
        self._history.deletions += deletions.values()
        response = await send(tree)
        completed_at = self._history.next_event()
        for each in response.results:
            _complete(deletions[each.group_id], each.error_code, completed_at)
        return response

    async def _join(self, tree: Mapping[str, Any], send: SendRequest) -> Message:
        invoked_at = self._history.next_event()
        response = await send(tree)
        if response.error_code == ErrorCode.none and response.member_id != tree["member_id"]:
            join = JoinOperation(
                invoked_at=invoked_at,
                group=tree["group_id"],
                instance_id=tree["group_instance_id"],
                member=response.member_id,
            )
            _complete(join, response.error_code, self._history.next_event())
            self._history.joins.append(join)
        return response

    async def _sync(self, tree: Mapping[str, Any], send: SendRequest) -> Message:
        invoked_at = self._history.next_event()
        response = await send(tree)
        if response.error_code == ErrorCode.none:
            partitions = decode_assignment(response.assignment).partitions
            sync = SyncOperation(
                invoked_at=invoked_at, identity=_identity(tree, "generation_id"), partitions=partitions
            )
            _complete(sync, response.error_code, self._history.next_event())
            self._history.syncs.append(sync)
        return response

    async def _heartbeat(self, tree: Mapping[str, Any], send: SendRequest) -> Message:
        invoked_at = self._history.next_event()
        response = await send(tree)
        if response.error_code == ErrorCode.none:
            heartbeat = HeartbeatOperation(invoked_at=invoked_at, identity=_identity(tree, "generation_id"))
            _complete(heartbeat, response.error_code, self._history.next_event())
            self._history.heartbeats.append(heartbeat)
        return response


def _identity(tree: Mapping[str, Any], generation: str) -> RequestIdentity:
    return RequestIdentity(tree["group_id"], tree[generation], tree["member_id"], tree["group_instance_id"])


def _complete(operation: ClientOperation, code: int, completed_at: int) -> None:
    if code == ErrorCode.none:
        operation.result, operation.completed_at = OperationResult.OK, completed_at
    elif code in DEFINITE_FAILURES:
        operation.result, operation.completed_at = OperationResult.FAIL, completed_at
