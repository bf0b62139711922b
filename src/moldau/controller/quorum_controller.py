"""The quorum controller: makes decisions and appends them to the metadata log while this node leads the metadata
quorum.

Calls return when their change is committed. Calls for clients also wait until this node has published the change. Calls
of brokers do not wait for that, because a node that opens many logs publishes late.

All calls raise NotControllerError if this controller is not active. `channel.py` finds the active controller.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from moldau.concurrency.notifier import Notifier
from moldau.controller.alter_partition import alter_partition
from moldau.controller.background_tasks import BackgroundTasks, FetchLogEnd, ProbeBroker
from moldau.controller.cluster_control import (
    HeartbeatOutcome,
    allocate_producer_ids,
    partitions_without_isr,
    process_broker_heartbeat,
    register_broker,
    unregister_broker,
)
from moldau.controller.configuration_control import alter_configs
from moldau.controller.elections import elect_leaders, unclean_election_candidates
from moldau.controller.feature_control import update_features
from moldau.controller.ids import Randomness
from moldau.controller.log_end_query import LogEndQuery
from moldau.controller.reassignment import alter_partition_reassignments, list_partition_reassignments
from moldau.controller.replica_readiness import UnreadyReplicas, find_unready_replicas
from moldau.controller.requests import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    BrokerRegistrationRequest,
    ConfigChange,
    ConfigResult,
    CreateTopicResult,
    ElectionType,
    FeatureUpdate,
    IsrChange,
    IsrChangeResult,
    NewTopic,
    OngoingReassignment,
    PartitionIncrease,
    PartitionResult,
    Reassignment,
    TopicRef,
    TopicResult,
)
from moldau.controller.state import ControllerState
from moldau.controller.topics import create_partitions, create_topics, delete_topics
from moldau.coordinator import CoordinatorResult
from moldau.coordinator.runtime import CoordinatorRuntime
from moldau.errors import NotControllerError, RequestTimedOutError, StorageError
from moldau.metadata.image import NO_LEADER, ConfigResource, MetadataDelta, MetadataImage
from moldau.metadata.loader import MetadataLoader
from moldau.metadata.records import Record, encode
from moldau.metrics.component_metrics import ControllerMetrics
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.settings.effective import EffectiveSettings

log = get_logger("controller")

T = TypeVar("T")

PARTITIONS_LOGGED_MAX = 10


class MetadataQuorum(Protocol):
    """The part of the quorum that the controller uses."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def epoch(self) -> int: ...

    @property
    def majority_confirmed_ms(self) -> int:
        """The time when a majority of the voters last confirmed this leader. No other leader can be elected until the
        fetch timeout has passed since that time."""

    @property
    def leader_silence_ms(self) -> int:
        """The minimum time for which the majority that elected this leader had received nothing from the previous
        leader."""

    async def start(self) -> None: ...

    async def append(self, values: Sequence[bytes]) -> int: ...


class _MetadataLog:
    """Adapts the metadata log to the log interface of `CoordinatorRuntime`."""

    def __init__(self, quorum: MetadataQuorum) -> None:
        self._quorum = quorum

    async def append(self, records: Sequence[Record]) -> int:
        return await self._quorum.append([encode(record) for record in records]) + 1


class QuorumController:
    def __init__(
        self,
        node_id: int,
        quorum: MetadataQuorum,
        loader: MetadataLoader,
        settings: EffectiveSettings,
        random: Randomness,
        clock: Clock,
        *,
        probe: ProbeBroker | None = None,
        fetch_log_end: FetchLogEnd | None = None,
    ) -> None:
        """`probe` connects to a broker to check whether its process is running. `fetch_log_end` fetches the log end of
        a replica from a broker; if None, there are no unclean elections."""
        self._node_id = node_id
        self._quorum = quorum
        self._loader = loader
        self._settings = settings
        self._random = random
        self._clock = clock
        self._probe = probe
        self._fetch_log_end = fetch_log_end
        self._runtime: CoordinatorRuntime[ControllerState, Record] = CoordinatorRuntime(
            _MetadataLog(quorum), not_loaded_error=_not_controller_error, on_failure=loader.fail
        )
        self._tasks: BackgroundTasks | None = None
        self._stopped_tasks: list[BackgroundTasks] = []
        """The background tasks of previous terms, which may still be stopping."""
        self._previous_controller = NO_LEADER
        self.metrics = ControllerMetrics()
        self._committed_image: MetadataImage | None = None
        """The image before the latest commit."""
        self._is_closed = False
        """A closed controller is not activated again, because the image may lack decisions that this controller has
        appended."""
        self._readiness_changed = Notifier()
        loader.add_commit_listener(self._on_commit)
        loader.add_image_listener(lambda _: self._readiness_changed.notify_all())
        loader.on_failure(self._on_loader_failure)

    @property
    def is_active(self) -> bool:
        return self._runtime.is_loaded

    def heartbeat_ages_ms(self) -> dict[int, int]:
        """Returns how long ago the last heartbeat of each broker was received; nothing if this node is not the active
        controller."""
        if self._tasks is None:
            return {}
        return self._tasks.heartbeat_manager.heartbeat_ages_ms(self._clock.monotonic_ms())

    @property
    def controller_id(self) -> int:
        """The node id of the active controller, -1 if unknown."""
        return self._loader.image.controller_id

    @property
    def epoch(self) -> int:
        return self._loader.image.controller_epoch

    async def start(self) -> None:
        """Joins the quorum and returns when this node has published a committed image."""
        await self._quorum.start()
        await self._loader.wait_for_offset(0)

    async def close(self) -> None:
        """Deactivates the controller and returns when no append is in progress."""
        self._is_closed = True
        self._deactivate(NotControllerError("the controller is shutting down"))
        for tasks in self._stopped_tasks:
            await tasks.wait_stopped()
        await self._runtime.close(NotControllerError("the controller is shutting down"))

    # Topics, configs and features

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[CreateTopicResult]:
        await self._require_active().wait_until_probed()
        return await self._submit_and_publish(
            lambda state: create_topics(state, topics, self._random, validate_only=validate_only)
        )

    async def delete_topics(self, topics: Sequence[TopicRef]) -> list[TopicResult]:
        return await self._submit_and_publish(lambda state: delete_topics(state, topics))

    async def create_partitions(
        self, changes: Sequence[PartitionIncrease], *, validate_only: bool = False
    ) -> list[TopicResult]:
        await self._require_active().wait_until_probed()
        return await self._submit_and_publish(
            lambda state: create_partitions(state, changes, self._random, validate_only=validate_only)
        )

    async def wait_replicas_ready(
        self, topics: Iterable[str], deadline_ms: int, *, first_partition: Mapping[str, int] | None = None
    ) -> dict[str, UnreadyReplicas]:
        """Waits until the replicas of these topics on live brokers are ready, or until the deadline. Returns the
        replicas that are still not ready, by topic. `first_partition` is the first partition of each topic to check.

        A broker that is fenced during the wait is no longer waited for.
        """
        tasks = self._require_active()
        offset = self._loader.image.offset
        first = {name: (first_partition or {}).get(name, 0) for name in topics}
        while True:
            unready = find_unready_replicas(self._loader.image, tasks.heartbeat_manager, first, offset)
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if not unready or left_ms <= 0:
                return unready
            await self._readiness_changed.wait(left_ms)
            if self._tasks is not tasks:
                raise _not_controller_error()

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[ConfigChange]],
        *,
        incremental: bool,
        validate_only: bool = False,
    ) -> list[ConfigResult]:
        return await self._submit_and_publish(
            lambda state: alter_configs(state, changes, incremental=incremental, validate_only=validate_only)
        )

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        await self._submit_and_publish(lambda state: update_features(state, updates, validate_only=validate_only))

    # Brokers

    async def register_broker(self, broker: BrokerRegistrationRequest, *, is_remote: bool = False) -> int:
        """Registers a broker and returns its broker epoch. A broker that is not remote runs in this process, so its
        previous incarnation has stopped."""
        tasks = self._require_active()
        heartbeat_manager = tasks.heartbeat_manager

        def expire_previous_session(state: ControllerState) -> None:
            known = state.image.brokers.get(broker.broker_id)
            if not is_remote and known is not None and known.incarnation_id != broker.incarnation_id:
                heartbeat_manager.expire_session(known.broker_id, known.epoch, self._clock.monotonic_ms())

        def decide(state: ControllerState) -> CoordinatorResult[Record, tuple[int | None, list[str]]]:
            now_ms = self._clock.monotonic_ms()
            decision = register_broker(state, broker, heartbeat_manager, now_ms)
            without_isr = partitions_without_isr(state.image, decision.records)
            return CoordinatorResult(decision.records, (decision.response, without_isr))

        without_isr: list[str] = []
        epoch = None
        while epoch is None:
            epoch, lost = await self._runtime.submit(decide, update=expire_previous_session)
            without_isr += lost
        if without_isr:
            log.error(
                "partitions have an empty ISR: their last ISR member registered with another disk, or an older state "
                "of it. Restore its disk if possible, then elect the longest log: moldau cluster elect-leaders "
                "--unclean",
                broker=broker.broker_id,
                partitions=len(without_isr),
                first=",".join(without_isr[:PARTITIONS_LOGGED_MAX]),
            )
        heartbeat_manager.start_session(broker.broker_id, epoch, self._clock.monotonic_ms())
        tasks.reschedule_timer()
        return epoch

    async def unregister_broker(self, broker_id: int) -> None:
        tasks = self._require_active()
        while not await self._runtime.submit(lambda state: unregister_broker(state, broker_id)):
            pass
        # Remove the session before the next await, because a broker that is still alive may register again during that
        # await, and its new session must stay.
        tasks.heartbeat_manager.remove_broker(broker_id)
        await self._wait_until_published()

    async def heartbeat(self, beat: BrokerHeartbeat) -> BrokerHeartbeatReply:
        """Processes a heartbeat. If the broker wants to shut down, waits until it may, but not for long."""
        tasks = self._require_active()
        now_ms = self._clock.monotonic_ms()
        confirmed_age_ms = self._quorum_contact_age_ms(now_ms)
        if tasks.heartbeat_manager.touch(beat, now_ms):
            self._readiness_changed.notify_all()
        notifications = self._readiness_changed.count
        outcome = await self._process_heartbeat(tasks, beat)
        if beat.broker_id == self._node_id:
            tasks.start_moves_to_controller()
        # Respond well before the broker's timeout for heartbeats, which is two intervals.
        deadline_ms = now_ms + self._settings.static.broker_heartbeat_interval_ms // 2
        while _is_waiting_for_others(beat, outcome):
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                break
            # The other brokers may have reported while the heartbeat was processed.
            await self._readiness_changed.wait(left_ms, since_count=notifications)
            if self._tasks is not tasks:
                raise _not_controller_error()
            notifications = self._readiness_changed.count
            outcome = await self._process_heartbeat(tasks, beat)
        reply = outcome.reply
        return BrokerHeartbeatReply(
            reply.is_caught_up, reply.is_fenced, reply.should_shut_down, confirmed_age_ms=confirmed_age_ms
        )

    async def _process_heartbeat(self, tasks: BackgroundTasks, beat: BrokerHeartbeat) -> HeartbeatOutcome:
        try:
            outcome: HeartbeatOutcome = await self._runtime.submit(
                lambda state: process_broker_heartbeat(state, beat, tasks.heartbeat_manager),
                update=lambda state: self._update_liveness(tasks, state, beat),
            )
        except asyncio.CancelledError:
            # The operation may have run before the cancellation and had too many records, so reconcile in any case.
            tasks.start_reconciliation(beat.broker_id)
            raise
        if not outcome.is_complete:
            # Do not wait for the task, because the broker needs the response soon to extend its lease.
            tasks.start_reconciliation(beat.broker_id)
        reply = outcome.reply
        session = tasks.heartbeat_manager.session_of(beat.broker_id, beat.broker_epoch)
        if beat.want_shut_down and session is not None:
            session.controlled_shutdown_offset = outcome.controlled_shutdown_offset
            if reply.should_shut_down:
                tasks.heartbeat_manager.expire_session(beat.broker_id, beat.broker_epoch, self._clock.monotonic_ms())
        return outcome

    def _update_liveness(self, tasks: BackgroundTasks, state: ControllerState, beat: BrokerHeartbeat) -> None:
        """Stores the offline replicas that the heartbeat reports, and starts a session if the broker has none."""
        if state.update_offline_replicas(beat) or beat.not_ready:
            tasks.on_offline_replicas(beat)
        broker = state.image.brokers.get(beat.broker_id)
        is_current = broker is not None and broker.epoch == beat.broker_epoch
        if is_current and tasks.heartbeat_manager.session_of(beat.broker_id, beat.broker_epoch) is None:
            # The broker has no session, because its registration call was cancelled after the registration was
            # appended. Start the session now, before this heartbeat can unfence the broker.
            now_ms = self._clock.monotonic_ms()
            tasks.heartbeat_manager.start_session(beat.broker_id, beat.broker_epoch, now_ms)
            tasks.heartbeat_manager.touch(beat, now_ms)
            tasks.reschedule_timer()
            self._readiness_changed.notify_all()

    def _quorum_contact_age_ms(self, now_ms: int) -> int:
        """Returns how long ago a majority last confirmed this controller. Raises NotControllerError if another
        controller may have been elected since then.

        A partitioned controller does not know of its successor. It must not extend leases that the successor considers
        expired, so leases count from the last confirmation.
        """
        age_ms = now_ms - self._quorum.majority_confirmed_ms
        if not self._quorum.is_leader or age_ms > self._settings.static.quorum_fetch_timeout_ms:
            raise NotControllerError("This controller has lost contact with the majority of the quorum.")
        return max(age_ms, 0)

    def broker_connection_closed(self, broker_id: int, broker_epoch: int) -> None:
        """Handles the end of a connection on which the broker sent heartbeats."""
        if self._tasks is not None:
            self._tasks.on_connection_closed(broker_id, broker_epoch)

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """Allocates a block of unused producer ids."""
        return await self._runtime.submit(lambda state: allocate_producer_ids(state, broker_id, broker_epoch))

    # Partitions

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrChangeResult]:
        return await self._runtime.submit(lambda state: alter_partition(state, broker_id, broker_epoch, changes))

    async def elect_leaders(
        self, election: ElectionType, partitions: Sequence[tuple[str, int]] | None
    ) -> list[PartitionResult]:
        """Elects preferred or unclean leaders.

        Before an unclean election, queries the log ends of the live replicas. If one replica does not respond, the
        partition gets no leader, because the log of that replica may be the longest.
        """
        tasks = self._require_active()
        if election is not ElectionType.UNCLEAN:
            return await self._submit_and_publish(lambda state: elect_leaders(state, election, partitions))

        def find_candidates(state: ControllerState) -> CoordinatorResult[Record, LogEndQuery]:
            requested = state.index.leaderless_partitions() if partitions is None else partitions
            candidates = unclean_election_candidates(state, requested)
            return CoordinatorResult([], LogEndQuery(state, candidates))

        query = await self._runtime.submit(find_candidates)
        await tasks.query_log_ends(query)
        return await self._submit_and_publish(
            lambda state: elect_leaders(state, election, partitions, query.log_ends(state, complete_only=True))
        )

    async def alter_partition_reassignments(
        self, reassignments: Sequence[Reassignment], allow_rf_change: bool = True
    ) -> list[PartitionResult]:
        return await self._submit_and_publish(
            lambda state: alter_partition_reassignments(state, reassignments, allow_rf_change=allow_rf_change)
        )

    def list_partition_reassignments(
        self, partitions: Sequence[tuple[str, int]] | None = None
    ) -> list[OngoingReassignment]:
        self._require_active()
        return list_partition_reassignments(self._loader.image, partitions)

    # Activation

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """Deactivates the controller if the quorum has elected another leader or has no leader."""
        term = self._loader.committed_image.controller_epoch
        if self.is_active and (leader_id != self._node_id or epoch != term):
            self._deactivate(_not_controller_error())

    async def _submit_and_publish(self, decide: Callable[[ControllerState], CoordinatorResult[Record, T]]) -> T:
        """Submits a decision for a client and waits until this node has published the records."""
        reply = await self._runtime.submit(decide)
        await self._wait_until_published()
        return reply

    async def _wait_until_published(self) -> None:
        try:
            await self._loader.wait_for_offset(self._loader.committed_image.offset)
        except Exception as error:
            raise _metadata_failed(error) from error

    def _on_commit(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Activates the controller when the leader change record of its epoch is committed, because the image then
        contains all earlier records.

        Does not wait until the image is published. A restarted node first opens its logs, and leases would expire
        during that time.
        """
        elected = image.controller_id == self._node_id and image.controller_epoch == self._quorum.epoch
        if self.is_active and elected and self._committed_image is not None:
            self._count_elections(self._committed_image, delta, image)
        self._committed_image = image
        if self.is_active and not elected:
            self._deactivate(_not_controller_error())
        elif elected and self._quorum.is_leader and not self.is_active and not self._is_closed:
            self._activate(image)
        self._previous_controller = image.controller_id
        self._runtime.update_committed_offset(image.offset + 1)
        if self._tasks is not None:
            self._tasks.on_image_change()

    def _count_elections(self, previous: MetadataImage, delta: MetadataDelta, image: MetadataImage) -> None:
        for name, index in delta.partitions_changed:
            before, after = previous.partition(name, index), image.partition(name, index)
            if before is None or after is None or after.leader_epoch == before.leader_epoch:
                continue
            if after.leader not in (NO_LEADER, before.leader):
                self.metrics.leader_elections += 1
            if after.unclean_epoch > before.unclean_epoch:
                self.metrics.unclean_leader_elections += 1

    def _activate(self, image: MetadataImage) -> None:
        log.info("controller is active", epoch=image.controller_epoch, offset=image.offset)
        state = ControllerState(image, self._settings.static)
        self._runtime.load(state, image.offset + 1)
        self._tasks = BackgroundTasks(
            self._node_id,
            self._runtime,
            self._settings,
            self._clock,
            state,
            previous_controller=self._previous_controller,
            leader_silence_ms=self._quorum.leader_silence_ms,
            probe=self._probe,
            fetch_log_end=self._fetch_log_end,
            metrics=self.metrics,
        )

    def _deactivate(self, error: BaseException) -> None:
        if self._tasks is not None:
            self._tasks.stop()
            self._stopped_tasks = [each for each in self._stopped_tasks if not each.has_stopped]
            self._stopped_tasks.append(self._tasks)
        self._tasks = None
        self._runtime.unload(
            error, in_doubt_error=_outcome_unknown() if isinstance(error, NotControllerError) else None
        )
        self._readiness_changed.notify_all()

    def _on_loader_failure(self, error: BaseException) -> None:
        self._deactivate(_metadata_failed(error))

    def _require_active(self) -> BackgroundTasks:
        if self._tasks is None or not self._runtime.is_loaded:
            raise _not_controller_error()
        return self._tasks


def _is_waiting_for_others(beat: BrokerHeartbeat, outcome: HeartbeatOutcome) -> bool:
    """Returns whether a broker may stop as soon as the other brokers have applied the change of its leaders.

    A broker that has not applied the change itself needs a response at once, because only its next heartbeat can report
    that it has.
    """
    offset = outcome.controlled_shutdown_offset
    return offset is not None and not outcome.reply.should_shut_down and beat.metadata_offset >= offset


def _outcome_unknown() -> RequestTimedOutError:
    """Returns the error for decisions that are appended but not committed. The next controller may still commit them.

    The error is not NOT_CONTROLLER, because NOT_CONTROLLER means that nothing was done, and forwarding nodes would
    retry.
    """
    return RequestTimedOutError(
        "The controller moved before the outcome was known: check whether the change was made before retrying."
    )


def _metadata_failed(error: BaseException) -> StorageError:
    return StorageError(f"the metadata loader of this node failed: {error}")


def _not_controller_error() -> NotControllerError:
    return NotControllerError("This is not the correct controller for this cluster.")
