"""Performs what `membership.py` says: requests to the coordinator and the heartbeat's timer. What concerns the user
is put aside for their next poll.

Joins wait at the coordinator for other members, so they go with their syncs and heartbeats over a lane of their own.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from moldau.client.errors import ErrorCode, KafkaError, code_of
from moldau.client.group.events import (
    CoordinatorFound,
    CoordinatorNotFound,
    Effect,
    Event,
    FetchMetadata,
    FindCoordinator,
    HeartbeatAnswered,
    JoinAnswered,
    MetadataChanged,
    MetadataFetched,
    Poll,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    SyncAnswered,
    Tick,
    Warn,
)
from moldau.client.group.state import Membership
from moldau.client.group.terms import JoinedMember, MemberSettings
from moldau.client.net.cluster import Cluster
from moldau.observe.logging import get_logger
from moldau.wire.api_keys import ApiKey
from moldau.wire.consumer_protocol import PROTOCOL_TYPE

LANE = "group"

_log = get_logger("client.group")


class GroupMember:
    def __init__(self, cluster: Cluster, settings: MemberSettings, news: Callable[[], None]) -> None:
        """`news` is called when a poll could bring the member forward."""
        self.membership = Membership(settings)
        self.work: deque[Effect] = deque()
        """What is to be done by the user's poll, in order."""
        self._cluster = cluster
        self._settings = settings
        self._news = news
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._watched: tuple[str, ...] = ()
        self._forget_updates = cluster.on_update(self._metadata_changed)

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def poll(self) -> None:
        """Brings the membership as far as it goes without an answer or the user; see `work` after it."""
        if not self.work:
            self.step(Poll())

    def step(self, event: Event) -> None:
        for effect in self.membership.step(self.now_ms(), event):
            self._perform(effect)
        self._wind_timer()

    def poll_again_at(self) -> float | None:
        """The loop time at which a poll has something to do whether answers come or not."""
        at_ms = self.membership.retry_at_ms()
        return None if at_ms is None else at_ms / 1000

    async def has_left(self) -> None:
        """Waits until the leave that was last said to be sent is answered or has failed."""
        leaving = [task for task in self._tasks if task.get_name() == _name(SendLeave)]
        await asyncio.gather(*leaving)

    async def close(self) -> None:
        """After `Closed` was stepped: whatever is still on its way is given up."""
        self.work.clear()
        self._forget_updates()
        self._wind_timer()
        self._watch(())
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Effects

    def _perform(self, effect: Effect) -> None:
        match effect:
            case FindCoordinator():
                self._start(effect, self._find())
            case SendJoin():
                self._start(effect, self._join(effect))
            case FetchMetadata():
                self._start(effect, self._fetch_metadata(effect))
            case SendSync():
                self._start(effect, self._sync(effect))
            case SendHeartbeat():
                self._start(effect, self._heartbeat(effect))
            case SendLeave():
                self._start(effect, self._leave(effect))
            case Warn(message):
                _log.warning(message, group=self._settings.group_id)
            case _:
                self.work.append(effect)

    def _start(self, effect: Effect, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=_name(type(effect)))
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a group request failed by a bug", task=task.get_name(), error=repr(error))

    def _answered(self, event: Event) -> None:
        self.step(event)
        self._news()

    def _wind_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at_ms = self.membership.heartbeat_at_ms()
        self._timer = (
            None
            if at_ms is None
            else asyncio.get_running_loop().call_at(at_ms / 1000, self._answered, Tick())
        )

    # Requests

    async def _find(self) -> None:
        self._cluster.forget_coordinator(self._settings.group_id)
        try:
            node_id = await self._cluster.coordinator_of(self._settings.group_id)
        except KafkaError as error:
            self._answered(CoordinatorNotFound(error.code, error.message))
        else:
            self._answered(CoordinatorFound(node_id))

    async def _join(self, join: SendJoin) -> None:
        tree = {
            "group_id": self._settings.group_id,
            "session_timeout": self._settings.session_timeout_ms,
            "rebalance_timeout": self._settings.poll_interval_max_ms,
            "member_id": join.member_id,
            "group_instance_id": self._settings.instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in join.protocols],
            "reason": join.reason or None,
        }
        try:
            answer = await self._cluster.call(
                join.coordinator, ApiKey.JOIN_GROUP, tree, timeout_ms=join.timeout_ms, lane=LANE
            )
        except KafkaError as error:
            self._answered(JoinAnswered(join.attempt, error.code, message=error.message))
            return
        members = tuple(
            JoinedMember(each.member_id, each.get("group_instance_id"), bytes(each.metadata))
            for each in answer.members
        )
        self._answered(
            JoinAnswered(
                join.attempt,
                code_of(answer.error_code),
                answer.generation_id,
                answer.member_id,
                answer.leader,
                answer.protocol_name or "",
                members,
                bool(answer.get("skip_assignment", False)),
            )
        )

    async def _fetch_metadata(self, effect: FetchMetadata) -> None:
        self._watch(effect.topics)
        try:
            await self._cluster.refresh(effect.topics)
        except KafkaError as error:
            _log.debug("the leader could not fetch metadata", group=self._settings.group_id, error=error)
            self._answered(MetadataFetched(effect.attempt, None))
        else:
            self._answered(MetadataFetched(effect.attempt, self._partition_counts()))

    async def _sync(self, sync: SendSync) -> None:
        tree = {
            "group_id": self._settings.group_id,
            "generation_id": sync.generation.generation_id,
            "member_id": sync.generation.member_id,
            "group_instance_id": self._settings.instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": sync.generation.protocol,
            "assignments": [
                {"member_id": member_id, "assignment": assignment}
                for member_id, assignment in sync.assignments
            ],
        }
        try:
            answer = await self._cluster.call(sync.coordinator, ApiKey.SYNC_GROUP, tree, lane=LANE)
        except KafkaError as error:
            self._answered(SyncAnswered(sync.attempt, error.code, message=error.message))
        else:
            self._answered(SyncAnswered(sync.attempt, code_of(answer.error_code), bytes(answer.assignment)))

    async def _heartbeat(self, beat: SendHeartbeat) -> None:
        tree = {
            "group_id": self._settings.group_id,
            "generation_id": beat.generation.generation_id,
            "member_id": beat.generation.member_id,
            "group_instance_id": self._settings.instance_id,
        }
        try:
            answer = await self._cluster.call(
                beat.coordinator,
                ApiKey.HEARTBEAT,
                tree,
                timeout_ms=self._settings.session_timeout_ms,
                lane=LANE,
            )
        except KafkaError as error:
            self._answered(HeartbeatAnswered(beat.beat, error.code))
        else:
            self._answered(HeartbeatAnswered(beat.beat, code_of(answer.error_code)))

    async def _leave(self, leave: SendLeave) -> None:
        """Best effort: a coordinator that does not hear it ends the session when no heartbeats come. Not over the
        group's lane, where a join may be waiting."""
        member = {"member_id": leave.member_id, "group_instance_id": None, "reason": leave.reason}
        tree = {"group_id": self._settings.group_id, "members": [member]}
        try:
            answer = await self._cluster.call(leave.coordinator, ApiKey.LEAVE_GROUP, tree)
        except KafkaError as error:
            _log.info("the group could not be left", group=self._settings.group_id, error=error)
            return
        codes = [answer.error_code, *(each.error_code for each in answer.members)]
        if any(code != ErrorCode.none for code in codes):
            _log.info("the group was left before", group=self._settings.group_id, codes=codes)

    # Metadata

    def _watch(self, topics: tuple[str, ...]) -> None:
        self._cluster.track(topics)
        self._cluster.untrack(self._watched)
        self._watched = topics

    def _metadata_changed(self) -> None:
        self._answered(MetadataChanged(self._partition_counts()))

    def _partition_counts(self) -> Mapping[str, int]:
        return {name: len(topic.partitions) for name, topic in self._cluster.topics.items()}


def _name(effect: type[Effect]) -> str:
    return f"group member: {effect.__name__}"
