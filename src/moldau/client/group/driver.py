"""Driver of the group membership: performs the effects that `membership_manager.py` returns, such as group requests.

Effects for the user, such as assignments and revocations, are queued until the next poll. JoinGroup waits at the
coordinator for other members. So the JoinGroup, SyncGroup and Heartbeat requests of a member use a separate connection
(a lane).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from moldau.client.errors import ErrorCode, KafkaError, to_error_code
from moldau.client.group import events
from moldau.client.group.assignors import JoinGroupMember
from moldau.client.group.events import Effect, Event
from moldau.client.group.member_state import Generation, GroupRebalanceConfig
from moldau.client.group.membership_manager import MembershipManager
from moldau.client.net.cluster import Cluster
from moldau.concurrency.tasks import cancel_and_wait
from moldau.observe.logging import get_logger
from moldau.wire.api_keys import ApiKey
from moldau.wire.consumer_protocol import PROTOCOL_TYPE

LANE = "group"

_log = get_logger("client.group")


class MembershipDriver:
    """Runs one group member in the event loop."""

    def __init__(self, cluster: Cluster, config: GroupRebalanceConfig, wakeup: Callable[[], None]) -> None:
        """`wakeup` is called when a poll could make progress."""
        self.membership = MembershipManager(config)
        self.pending_effects: deque[Effect] = deque()
        """The effects that the user's next poll performs, in order."""
        self._cluster = cluster
        self._lane = cluster.new_lane(LANE)
        self._config = config
        self._wakeup = wakeup
        self._requests: Mapping[type[Effect], Callable[[Any], Coroutine[Any, Any, None]]] = {
            events.FindCoordinator: self._find_coordinator,
            events.SendJoin: self._send_join,
            events.FetchMetadata: self._fetch_metadata,
            events.SendSync: self._send_sync,
            events.SendHeartbeat: self._send_heartbeat,
            events.SendLeave: self._send_leave,
        }
        self._tasks: dict[asyncio.Task[None], Effect] = {}
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._tracked_topics: tuple[str, ...] = ()
        self._remove_update_listener = cluster.on_update(self._on_metadata_update)

    def poll(self) -> None:
        """Handles a poll of the user, unless effects of the previous poll are still pending."""
        if not self.pending_effects:
            self.step(events.UserPoll())

    def step(self, event: Event) -> None:
        now_ms = round(asyncio.get_running_loop().time() * 1000)
        for effect in self.membership.step(now_ms, event):
            self._perform(effect)
        self._schedule_heartbeat()

    def next_poll_at(self) -> float | None:
        """Returns the loop time at which the next poll is due; None if only a response can make progress."""
        at_ms = self.membership.next_poll_at_ms()
        return None if at_ms is None else at_ms / 1000

    async def wait_until_left(self) -> None:
        await asyncio.gather(*(task for task, effect in self._tasks.items() if isinstance(effect, events.SendLeave)))

    async def close(self) -> None:
        """Cancels all requests. The caller must pass the event `Closed` to `step` first."""
        self.pending_effects.clear()
        self._remove_update_listener()
        self._schedule_heartbeat()
        self._track_topics(())
        await cancel_and_wait(*self._tasks)
        self._cluster.close_lane(self._lane)

    # Effects

    def _perform(self, effect: Effect) -> None:
        request = self._requests.get(type(effect))
        if request is not None:
            name = f"group member: {type(effect).__name__}"
            task = asyncio.get_running_loop().create_task(request(effect), name=name)
            self._tasks[task] = effect
            task.add_done_callback(self._on_task_done)
        elif isinstance(effect, events.LogWarning):
            _log.warning(effect.message, group=self._config.group_id)
        else:
            self.pending_effects.append(effect)

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("group request failed unexpectedly", task=task.get_name(), error=repr(error))

    def _handle_event(self, event: Event) -> None:
        self.step(event)
        self._wakeup()

    def _schedule_heartbeat(self) -> None:
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None
        at_ms = self.membership.next_heartbeat_at_ms()
        if at_ms is not None:
            loop = asyncio.get_running_loop()
            self._heartbeat_timer = loop.call_at(at_ms / 1000, self._handle_event, events.HeartbeatTick())

    # Requests

    async def _find_coordinator(self, _: events.FindCoordinator) -> None:
        self._cluster.forget_coordinator(self._config.group_id)
        event: Event
        try:
            event = events.CoordinatorFound(await self._cluster.coordinator_of(self._config.group_id))
        except KafkaError as error:
            event = events.CoordinatorNotFound(error.code, error.message)
        self._handle_event(event)

    async def _send_join(self, join: events.SendJoin) -> None:
        tree = {
            "group_id": self._config.group_id,
            "session_timeout": self._config.session_timeout_ms,
            "rebalance_timeout": self._config.poll_interval_max_ms,
            "member_id": join.member_id,
            "group_instance_id": self._config.instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in join.protocols],
            "reason": join.reason or None,
        }
        try:
            response = await self._cluster.call(
                join.coordinator, ApiKey.JOIN_GROUP, tree, timeout_ms=join.timeout_ms, lane=self._lane
            )
        except KafkaError as error:
            self._handle_event(events.JoinResponse(join.attempt, error.code, message=error.message))
            return
        event = events.JoinResponse(
            join.attempt,
            to_error_code(response.error_code),
            response.generation_id,
            response.member_id,
            response.leader,
            response.protocol_name or "",
            tuple(
                JoinGroupMember(each.member_id, each.get("group_instance_id"), bytes(each.metadata))
                for each in response.members
            ),
            bool(response.get("skip_assignment", False)),
        )
        self._handle_event(event)

    async def _fetch_metadata(self, effect: events.FetchMetadata) -> None:
        self._track_topics(effect.topics)
        partition_counts = None
        try:
            await self._cluster.refresh(effect.topics)
            partition_counts = self._partition_counts()
        except KafkaError as error:
            _log.debug("metadata fetch of the group leader failed", group=self._config.group_id, error=error)
        self._handle_event(events.MetadataFetchCompleted(effect.attempt, partition_counts))

    async def _send_sync(self, sync: events.SendSync) -> None:
        tree = self._generation_tree(sync.generation) | {
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": sync.generation.protocol,
            "assignments": [
                {"member_id": member_id, "assignment": assignment} for member_id, assignment in sync.assignments
            ],
        }
        try:
            response = await self._cluster.call(sync.coordinator, ApiKey.SYNC_GROUP, tree, lane=self._lane)
            code = to_error_code(response.error_code)
            event = events.SyncResponse(sync.attempt, code, bytes(response.assignment))
        except KafkaError as error:
            event = events.SyncResponse(sync.attempt, error.code, message=error.message)
        self._handle_event(event)

    async def _send_heartbeat(self, effect: events.SendHeartbeat) -> None:
        tree = self._generation_tree(effect.generation)
        timeout_ms = self._config.session_timeout_ms
        try:
            response = await self._cluster.call(
                effect.coordinator, ApiKey.HEARTBEAT, tree, timeout_ms=timeout_ms, lane=self._lane
            )
            code = to_error_code(response.error_code)
        except KafkaError as error:
            code = error.code
        self._handle_event(events.HeartbeatResponse(effect.heartbeat_id, code))

    def _generation_tree(self, generation: Generation) -> dict[str, Any]:
        return {
            "group_id": self._config.group_id,
            "generation_id": generation.generation_id,
            "member_id": generation.member_id,
            "group_instance_id": self._config.instance_id,
        }

    async def _send_leave(self, leave: events.SendLeave) -> None:
        """Sends LeaveGroup once, not on the group's lane, because a JoinGroup in flight there could delay it."""
        member = {"member_id": leave.member_id, "group_instance_id": None, "reason": leave.reason}
        tree = {"group_id": self._config.group_id, "members": [member]}
        try:
            response = await self._cluster.call(leave.coordinator, ApiKey.LEAVE_GROUP, tree)
        except KafkaError as error:
            _log.info("LeaveGroup failed", group=self._config.group_id, error=error)
            return
        codes = [response.error_code, *(each.error_code for each in response.members)]
        if any(code != ErrorCode.none for code in codes):
            _log.info("LeaveGroup was rejected", group=self._config.group_id, codes=codes)

    # Metadata

    def _track_topics(self, topics: tuple[str, ...]) -> None:
        self._cluster.track(topics)
        self._cluster.untrack(self._tracked_topics)
        self._tracked_topics = topics

    def _on_metadata_update(self) -> None:
        self._handle_event(events.MetadataChanged(self._partition_counts()))

    def _partition_counts(self) -> Mapping[str, int]:
        return {name: len(topic.partitions) for name, topic in self._cluster.topics.items()}
