"""The controller as the rest of the node sees it: awaitable calls that return when the change is committed. What
clients ask for returns when every part of this node has taken it, too; what brokers ask does not wait for that, as a
node that opens its logs may take long.

All of them raise NotControllerError where another node's controller decides; `gateway.py` finds that one.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from moldau.controller.alter_partition import alter_partition
from moldau.controller.background_tasks import (
    BackgroundTasks,
    FetchLogEnd,
    ProbeBroker,
    has_leaderless_partitions,
)
from moldau.controller.cluster_control import (
    allocate_producer_ids,
    partitions_without_isr,
    process_broker_heartbeat,
    register_broker,
    unregister_broker,
)
from moldau.controller.configuration_control import alter_configs
from moldau.controller.elections import elect_leaders, unclean_election_candidates
from moldau.controller.ids import Randomness
from moldau.controller.log_end_query import LogEndQuery
from moldau.controller.offline_replicas import update_offline_replicas
from moldau.controller.readiness import find_unready_replicas
from moldau.controller.reassignment import alter_partition_reassignments, list_partition_reassignments
from moldau.controller.requests import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    BrokerRegistrationRequest,
    ConfigChange,
    ConfigResult,
    CreateTopicResult,
    ElectionType,
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
from moldau.controller.state import RECORDS_PER_DECISION_MAX, ControllerState
from moldau.controller.topics import create_partitions, create_topics, delete_topics
from moldau.coordinator import CoordinatorResult
from moldau.coordinator.runtime import CoordinatorRuntime
from moldau.errors import NotControllerError, RequestTimedOutError, StorageError
from moldau.metadata.image import NO_LEADER, ConfigResource, MetadataDelta, MetadataImage
from moldau.metadata.loader import MetadataLoader
from moldau.metadata.records import Record, encode
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.settings.effective import EffectiveSettings

log = get_logger("controller")

T = TypeVar("T")

ABANDONED_SHOWN_MAX = 10


class MetadataQuorum(Protocol):
    """What the controller needs of the quorum whose log it writes."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def epoch(self) -> int: ...

    @property
    def majority_confirmed_ms(self) -> int:
        """When a majority of the voters last confirmed this leader: no other can have been elected before the fetch
        timeout has passed since."""

    @property
    def leader_silence_ms(self) -> int:
        """For how long the majority that elected this leader had heard of no other one, at least."""

    async def start(self) -> None: ...

    async def append(self, values: Sequence[bytes]) -> int: ...


class _MetadataLog:
    """The quorum's log as the decision runtime sees it."""

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
        """`probe` looks whether a broker's process is there at all. `fetch_log_end` asks a broker, this one
        too, for the
        end of its log of a partition: only where it is given are there unclean elections."""
        self._node_id = node_id
        self._quorum = quorum
        self._loader = loader
        self._settings = settings
        self._random = random
        self._clock = clock
        self._probe = probe
        self._ask_log_end = fetch_log_end
        self._runtime: CoordinatorRuntime[ControllerState, Record] = CoordinatorRuntime(
            _MetadataLog(quorum), not_loaded_error=_not_controller_error, on_failure=loader.fail
        )
        self._state: ControllerState | None = None
        self._tasks: BackgroundTasks | None = None
        self._stopped_tasks: list[BackgroundTasks] = []
        """Those of former terms whose tasks may still be ending."""
        self._previous_controller = NO_LEADER
        self._is_closed = False
        """Then it does not begin again: the image may lack decisions that it has appended."""
        self._waiters: list[asyncio.Future[None]] = []
        loader.add_commit_listener(self._on_commit)
        loader.add_image_listener(lambda _: self._notify_waiters())
        loader.on_failure(self._on_loader_failure)

    @property
    def is_active(self) -> bool:
        """Whether this node's controller is the one that decides."""
        return self._runtime.is_loaded

    @property
    def controller_id(self) -> int:
        """The active controller's node, -1 while none is known."""
        return self._loader.image.controller_id

    @property
    def epoch(self) -> int:
        return self._loader.image.controller_epoch

    async def start(self) -> None:
        """Joins the quorum; returns when the cluster has a controller and this node its committed image."""
        await self._quorum.start()
        await self._loader.wait_for_offset(0)

    async def close(self) -> None:
        """Refuses from now on; returns when no decision is being appended any more."""
        self._is_closed = True
        self._deactivate(NotControllerError("the controller is shutting down"))
        for tasks in self._stopped_tasks:
            await tasks.wait_stopped()
        await self._runtime.close(NotControllerError("the controller is shutting down"))

    # Topics and configs

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[CreateTopicResult]:
        await self._require_active().wait_until_probed()
        return await self._submit_and_publish(
            lambda state: create_topics(
                state, topics, self._settings, self._random, validate_only=validate_only
            )
        )

    async def delete_topics(self, topics: Sequence[TopicRef]) -> list[TopicResult]:
        return await self._submit_and_publish(lambda state: delete_topics(state, topics, self._settings))

    async def create_partitions(
        self, changes: Sequence[PartitionIncrease], *, validate_only: bool = False
    ) -> list[TopicResult]:
        await self._require_active().wait_until_probed()
        return await self._submit_and_publish(
            lambda state: create_partitions(
                state, changes, self._settings, self._random, validate_only=validate_only
            )
        )

    async def wait_replicas_ready(
        self, topics: Iterable[str], deadline_ms: int, *, first_partition: Mapping[str, int] | None = None
    ) -> dict[str, list[str]]:
        """Returns when all replicas of these topics are ready (of those with more partitions than before: from the
        first new one on), or else at the deadline with what is not, in words, by topic."""
        tasks = self._require_active()
        offset = self._loader.image.offset
        wanted = {name: (first_partition or {}).get(name, 0) for name in topics}
        while True:
            found = find_unready_replicas(self._loader.image, tasks.heartbeat_manager, wanted, offset)
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if not found or left_ms <= 0:
                return found
            await self._wait_for_change(left_ms)
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
            lambda state: alter_configs(
                state, changes, self._settings, incremental=incremental, validate_only=validate_only
            )
        )

    # Brokers

    async def register_broker(self, broker: BrokerRegistrationRequest, *, is_remote: bool = False) -> int:
        """The broker's epoch. A broker that is not `is_remote` is in this process, so its former life is over."""
        tasks = self._require_active()
        heartbeat_manager = tasks.heartbeat_manager

        def decide(state: ControllerState) -> CoordinatorResult[Record, int | None]:
            now_ms = self._clock.monotonic_ms()
            known = state.image.brokers.get(broker.broker_id)
            if not is_remote and known is not None and known.incarnation_id != broker.incarnation_id:
                heartbeat_manager.expire_session(known.broker_id, known.epoch, now_ms)
            decision = register_broker(state, self._settings, broker, heartbeat_manager, now_ms)
            abandoned.extend(partitions_without_isr(state.image, decision.records))
            return decision

        abandoned: list[str] = []
        epoch = None
        while epoch is None:
            epoch = await self._runtime.submit(decide)
        if abandoned:
            log.error(
                "no replica is left that is known to have all records: the last one came back with another disk, or an "
                "older state of it. Bring its disk back if you can, and then elect the longest log that is there: "
                "moldau cluster elect-leaders --unclean",
                broker=broker.broker_id,
                partitions=len(abandoned),
                first=",".join(abandoned[:ABANDONED_SHOWN_MAX]),
            )
        heartbeat_manager.begin(broker.broker_id, epoch, self._clock.monotonic_ms())
        tasks.reschedule_timer()
        return epoch

    async def unregister_broker(self, broker_id: int) -> None:
        tasks = self._require_active()
        while not await self._runtime.submit(
            lambda state: unregister_broker(state, self._settings, broker_id)
        ):
            pass
        # At once: if it is alive it registers anew, and that session must stay.
        tasks.heartbeat_manager.remove_broker(broker_id)
        await self._wait_until_published()

    async def heartbeat(self, beat: BrokerHeartbeat) -> BrokerHeartbeatReply:
        tasks = self._require_active()
        heartbeat_manager = tasks.heartbeat_manager
        now_ms = self._clock.monotonic_ms()
        confirmed_age_ms = self._quorum_contact_age_ms(now_ms)
        if heartbeat_manager.touch(beat, now_ms):
            self._notify_waiters()

        def decide(state: ControllerState) -> CoordinatorResult[Record, BrokerHeartbeatReply]:
            failed_have_changed = update_offline_replicas(state, beat)
            decision = process_broker_heartbeat(state, self._settings, beat, heartbeat_manager)
            # What else has to be done is not waited for: the broker's lease runs on the answer.
            if len(decision.records) == RECORDS_PER_DECISION_MAX:
                tasks.start_reconciliation(beat.broker_id)
            if failed_have_changed or beat.not_ready:
                tasks.on_offline_replicas(beat)
            if heartbeat_manager.of(beat.broker_id, beat.broker_epoch) is None:
                # Whoever registered it did not wait for the answer. It must not be unfenced and unwatched.
                heartbeat_manager.begin(beat.broker_id, beat.broker_epoch, self._clock.monotonic_ms())
                tasks.reschedule_timer()
            return decision

        reply = await self._runtime.submit(decide)
        if beat.want_shut_down and reply.should_shut_down:
            heartbeat_manager.expire_session(beat.broker_id, beat.broker_epoch, self._clock.monotonic_ms())
        return BrokerHeartbeatReply(
            reply.is_caught_up, reply.is_fenced, reply.should_shut_down, confirmed_age_ms=confirmed_age_ms
        )

    def _quorum_contact_age_ms(self, now_ms: int) -> int:
        """How long ago a majority last confirmed this controller.

        A controller that is cut off does not know of its successor, and must not prolong leases that the successor
        takes to have run out. So leases count from this time, and it stops to answer before there can be another.
        """
        age_ms = now_ms - self._quorum.majority_confirmed_ms
        if not self._quorum.is_leader or age_ms > self._settings.static.quorum_fetch_timeout_ms:
            raise NotControllerError("This controller has not heard of a majority of the quorum lately.")
        return max(age_ms, 0)

    def broker_connection_closed(self, broker_id: int, broker_epoch: int) -> None:
        """A connection on which this broker's heartbeats came has closed."""
        if self._tasks is not None:
            self._tasks.on_connection_closed(broker_id, broker_epoch)

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """A block of producer ids that nobody has had before."""
        return await self._runtime.submit(lambda state: allocate_producer_ids(state, broker_id, broker_epoch))

    # Partitions

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrChangeResult]:
        return await self._runtime.submit(
            lambda state: alter_partition(state, self._settings, broker_id, broker_epoch, changes)
        )

    async def elect_leaders(
        self, election: ElectionType, partitions: Sequence[tuple[str, int]] | None
    ) -> list[PartitionResult]:
        """For an unclean election the live replicas are first asked for the ends of their logs. Where one does not
        answer nobody is elected: its log may be the longest."""
        tasks = self._require_active()
        if election is not ElectionType.UNCLEAN:
            return await self._submit_and_publish(
                lambda state: elect_leaders(state, self._settings, election, partitions)
            )

        def ask(state: ControllerState) -> CoordinatorResult[Record, LogEndQuery]:
            wanted = unclean_election_candidates(
                state, self._settings, _requested_partitions(state, partitions)
            )
            return CoordinatorResult([], LogEndQuery(state, wanted))

        query = await self._runtime.submit(ask)
        await tasks.query_log_ends(query)
        return await self._submit_and_publish(
            lambda state: elect_leaders(
                state, self._settings, election, partitions, query.log_ends(state, complete_only=True)
            )
        )

    async def alter_partition_reassignments(
        self, reassignments: Sequence[Reassignment], allow_rf_change: bool = True
    ) -> list[PartitionResult]:
        return await self._submit_and_publish(
            lambda state: alter_partition_reassignments(
                state, self._settings, reassignments, allow_rf_change=allow_rf_change
            )
        )

    def list_partition_reassignments(
        self, partitions: Sequence[tuple[str, int]] | None = None
    ) -> list[OngoingReassignment]:
        self._require_active()
        return list_partition_reassignments(self._loader.image, partitions)

    # Becoming active and ceasing to be

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """The quorum has another leader, or none: decisions could not be committed any more."""
        term = self._loader.committed.controller_epoch
        if self.is_active and (leader_id != self._node_id or epoch != term):
            self._deactivate(_not_controller_error())

    async def _submit_and_publish(
        self, decide: Callable[[ControllerState], CoordinatorResult[Record, T]]
    ) -> T:
        """For clients: whoever looks at this node afterwards sees what was changed."""
        reply = await self._runtime.submit(decide)
        await self._wait_until_published()
        return reply

    async def _wait_until_published(self) -> None:
        """All of this node has what is committed now."""
        try:
            await self._loader.wait_for_offset(self._loader.committed.offset)
        except Exception as error:
            raise _metadata_failed(error) from error

    def _on_commit(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """It holds the record by which its controller began, and all before it, so from here on that controller may
        decide. The other parts of this node are not waited for: one that has just started opens its logs, and all
        leases would run out meanwhile."""
        elected = image.controller_id == self._node_id and image.controller_epoch == self._quorum.epoch
        if self.is_active and not elected:
            self._deactivate(_not_controller_error())
        elif elected and self._quorum.is_leader and not self.is_active and not self._is_closed:
            self._activate(image)
        self._previous_controller = image.controller_id
        self._runtime.committed(image.offset + 1)
        if self._tasks is not None and self._state is not None:
            self._tasks.on_image_change(has_leaderless_partitions(self._state))

    def _activate(self, image: MetadataImage) -> None:
        log.info("controller is active", epoch=image.controller_epoch, offset=image.offset)
        self._state = ControllerState(image)
        self._runtime.load(self._state, image.offset + 1)
        self._tasks = BackgroundTasks(
            self._node_id,
            self._runtime,
            self._settings,
            self._clock,
            image,
            previous_controller=self._previous_controller,
            leader_silence_ms=self._quorum.leader_silence_ms,
            probe=self._probe,
            fetch_log_end=self._ask_log_end,
        )

    def _deactivate(self, error: BaseException) -> None:
        if self._tasks is not None:
            self._tasks.stop()
            self._stopped_tasks = [each for each in self._stopped_tasks if not each.has_stopped]
            self._stopped_tasks.append(self._tasks)
        self._tasks = self._state = None
        self._runtime.unload(
            error, in_doubt_error=_outcome_unknown() if isinstance(error, NotControllerError) else None
        )
        self._notify_waiters()

    def _on_loader_failure(self, error: BaseException) -> None:
        self._deactivate(_metadata_failed(error))

    def _require_active(self) -> BackgroundTasks:
        if self._tasks is None or not self._runtime.is_loaded:
            raise _not_controller_error()
        return self._tasks

    # News for those who wait until something is ready

    async def _wait_for_change(self, within_ms: int) -> None:
        """Returns when something has changed in what is ready, or the time is over."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()
        self._waiters.append(told)
        timer = loop.call_later(within_ms / 1000, _wake, told)
        try:
            await told
        finally:
            timer.cancel()
            if told in self._waiters:
                self._waiters.remove(told)

    def _notify_waiters(self) -> None:
        awaiting, self._waiters = self._waiters, []
        for told in awaiting:
            _wake(told)


def _wake(told: "asyncio.Future[None]") -> None:
    if not told.done():
        told.set_result(None)


def _requested_partitions(
    state: ControllerState, partitions: Sequence[tuple[str, int]] | None
) -> Sequence[tuple[str, int]]:
    """An administrator who names no partitions means all that have no leader."""
    return state.index.leaderless_partitions() if partitions is None else partitions


def _outcome_unknown() -> RequestTimedOutError:
    """For changes that the next controller may find in the log: NOT_CONTROLLER would say that nothing was done, and
    nodes that hand requests on would ask again."""
    return RequestTimedOutError(
        "The controller moved before it could say whether this was done: look before trying again."
    )


def _metadata_failed(error: BaseException) -> StorageError:
    return StorageError(f"the metadata of this node has failed: {error}")


def _not_controller_error() -> NotControllerError:
    return NotControllerError("This is not the correct controller for this cluster.")
