"""A cluster connection that writes down what goes over it: every group request and its answer become history.

It stands below the client's own code, so that real consumers and hand-made requests give evidence alike.
"""

from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from typing import Any

from moldau.client.net.cluster import Cluster
from moldau.testing.simulation.checkers.history_groups import (
    Asked,
    Beat,
    Claim,
    Commit,
    Deletion,
    Fate,
    GroupHistory,
    Join,
    Look,
    Sync,
)
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message
from moldau.wire.consumer_protocol import decode_assignment
from moldau.wire.kio import ErrorCode

REFUSALS = (
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
"""Codes that say for certain that nothing was changed; after any other, nobody knows."""

Send = Callable[[Mapping[str, Any]], Awaitable[Message]]


class WitnessedCluster(Cluster):
    def __init__(self, bootstrap: str, history: GroupHistory, **options: Any) -> None:
        super().__init__(bootstrap, **options)
        self._history = history
        self._witnesses: Mapping[ApiKey, Callable[[Mapping[str, Any], Send], Awaitable[Message]]] = {
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.OFFSET_FETCH: self._look,
            ApiKey.OFFSET_DELETE: self._delete_offsets,
            ApiKey.DELETE_GROUPS: self._delete_groups,
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._sync,
            ApiKey.HEARTBEAT: self._beat,
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
            return await super(WitnessedCluster, self).call(
                node_id, api, tree, timeout_ms=timeout_ms, version_max=version_max, lane=lane
            )

        witness = self._witnesses.get(api)
        return await (send(tree) if witness is None else witness(tree, send))

    async def _commit(self, tree: Mapping[str, Any], send: Send) -> Message:
        begun = self._history.now()
        claim = _claim(tree, "generation_id_or_member_epoch")
        stamped = deepcopy(dict(tree))
        commits: dict[tuple[str, int], Commit] = {}
        for topic in stamped["topics"]:
            for each in topic["partitions"]:
                each["committed_metadata"] = stamp = f"{self.client_id} at {begun}"
                partition = topic["name"], each["partition_index"]
                commits[partition] = Commit(
                    begun=begun,
                    stamp=stamp,
                    claim=claim,
                    partition=partition,
                    offset=each["committed_offset"],
                )
        self._history.commits += commits.values()
        answer = await send(stamped)
        ended = self._history.now()
        for topic in answer.topics:
            for each in topic.partitions:
                _close(commits[topic.name, each.partition_index], each.error_code, ended)
        return answer

    async def _look(self, tree: Mapping[str, Any], send: Send) -> Message:
        begun = self._history.now()
        answer = await send(tree)
        ended = self._history.now()
        for group in answer.groups:
            for topic in group.topics:
                for each in topic.partitions:
                    if ErrorCode.none == group.error_code == each.error_code:
                        self._history.looks.append(
                            Look(
                                group=group.group_id,
                                partition=(topic.name, each.partition_index),
                                begun=begun,
                                ended=ended,
                                offset=each.committed_offset,
                                stamp=each.metadata or "",
                            )
                        )
        return answer

    async def _delete_offsets(self, tree: Mapping[str, Any], send: Send) -> Message:
        begun = self._history.now()
        deletions = {
            (topic["name"], each["partition_index"]): Deletion(
                begun=begun, group=tree["group_id"], partition=(topic["name"], each["partition_index"])
            )
            for topic in tree["topics"]
            for each in topic["partitions"]
        }
        self._history.deletions += deletions.values()
        answer = await send(tree)
        ended = self._history.now()
        if answer.error_code != ErrorCode.none:
            for deletion in deletions.values():
                _close(deletion, answer.error_code, ended)
        for topic in answer.topics:
            for each in topic.partitions:
                _close(deletions[topic.name, each.partition_index], each.error_code, ended)
        return answer

    async def _delete_groups(self, tree: Mapping[str, Any], send: Send) -> Message:
        begun = self._history.now()
        deletions = {name: Deletion(begun=begun, group=name, partition=None) for name in tree["groups_names"]}
        self._history.deletions += deletions.values()
        answer = await send(tree)
        ended = self._history.now()
        for each in answer.results:
            _close(deletions[each.group_id], each.error_code, ended)
        return answer

    async def _join(self, tree: Mapping[str, Any], send: Send) -> Message:
        begun = self._history.now()
        answer = await send(tree)
        if answer.error_code == ErrorCode.none and answer.member_id != tree["member_id"]:
            join = Join(
                begun=begun,
                group=tree["group_id"],
                instance=tree["group_instance_id"],
                member=answer.member_id,
            )
            _close(join, answer.error_code, self._history.now())
            self._history.joins.append(join)
        return answer

    async def _sync(self, tree: Mapping[str, Any], send: Send) -> Message:
        begun = self._history.now()
        answer = await send(tree)
        if answer.error_code == ErrorCode.none:
            partitions = decode_assignment(answer.assignment).partitions
            sync = Sync(begun=begun, claim=_claim(tree, "generation_id"), partitions=partitions)
            _close(sync, answer.error_code, self._history.now())
            self._history.syncs.append(sync)
        return answer

    async def _beat(self, tree: Mapping[str, Any], send: Send) -> Message:
        begun = self._history.now()
        answer = await send(tree)
        if answer.error_code == ErrorCode.none:
            beat = Beat(begun=begun, claim=_claim(tree, "generation_id"))
            _close(beat, answer.error_code, self._history.now())
            self._history.beats.append(beat)
        return answer


def _claim(tree: Mapping[str, Any], generation: str) -> Claim:
    return Claim(tree["group_id"], tree[generation], tree["member_id"], tree["group_instance_id"])


def _close(asked: Asked, code: int, ended: int) -> None:
    if code == ErrorCode.none:
        asked.fate, asked.ended = Fate.DONE, ended
    elif code in REFUSALS:
        asked.fate, asked.ended = Fate.REFUSED, ended
