"""The controller as the rest of the node sees it: awaitable calls that return when the change is committed. What
clients ask for returns when every part of this node has taken it, too; what brokers ask does not wait for that, as a
node that opens its logs may take long.

All of them raise NotControllerError where another node's controller decides; `gateway.py` finds that one.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from moldau.controller.brokers import (
    allocate_producer_ids,
    heartbeat,
    left_without_records,
    register_broker,
    unregister_broker,
)
from moldau.controller.configs import alter_configs
from moldau.controller.elections import elect_leaders, unclean_candidates
from moldau.controller.failed_replicas import note_failed
from moldau.controller.ids import Randomness
from moldau.controller.in_sync import alter_in_sync
from moldau.controller.inquiry import Inquiry
from moldau.controller.readiness import unready
from moldau.controller.reassignment import alter_reassignments, list_reassignments
from moldau.controller.requests import (
    ConfigChange,
    ConfigResult,
    ElectionType,
    Heartbeat,
    HeartbeatReply,
    InSyncChange,
    InSyncResult,
    MorePartitions,
    NewTopic,
    OngoingReassignment,
    PartitionResult,
    Reassignment,
    Registration,
    TopicCreated,
    TopicRef,
    TopicResult,
)
from moldau.controller.state import RECORDS_PER_DECISION_MAX, ControllerState
from moldau.controller.topics import create_partitions, create_topics, delete_topics
from moldau.controller.upkeep import AskLogEnd, ProbeBroker, Upkeep, has_leaderless
from moldau.coordinator import Decision
from moldau.coordinator.runtime import DecisionRuntime
from moldau.errors import NotControllerError, RequestTimedOutError, StorageError
from moldau.metadata.image import NO_LEADER, ClusterDelta, ClusterImage, ConfigResource
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
    def confirmed_ms(self) -> int:
        """When a majority of the voters last confirmed this leader: no other can have been elected before the fetch
        timeout has passed since."""

    @property
    def silent_ms(self) -> int:
        """For how long the majority that elected this leader had heard of no other one, at least."""

    async def start(self) -> None: ...

    async def append(self, values: Sequence[bytes]) -> int: ...


class _MetadataLog:
    """The quorum's log as the decision runtime sees it."""

    def __init__(self, quorum: MetadataQuorum) -> None:
        self._quorum = quorum

    async def append(self, records: Sequence[Record]) -> int:
        return await self._quorum.append([encode(record) for record in records]) + 1


class Controller:
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
        ask_log_end: AskLogEnd | None = None,
    ) -> None:
        """`probe` looks whether a broker's process is there at all. `ask_log_end` asks a broker, this one too, for the
        end of its log of a partition: only where it is given are there unclean elections."""
        self._node_id = node_id
        self._quorum = quorum
        self._loader = loader
        self._settings = settings
        self._random = random
        self._clock = clock
        self._probe = probe
        self._ask_log_end = ask_log_end
        self._runtime: DecisionRuntime[ControllerState, Record] = DecisionRuntime(
            _MetadataLog(quorum), refuse_with=_not_controller, on_failure=loader.fail
        )
        self._state: ControllerState | None = None
        self._upkeep: Upkeep | None = None
        self._ended: list[Upkeep] = []
        """Those of former terms whose tasks may still be ending."""
        self._former_controller = NO_LEADER
        self._is_closed = False
        """Then it does not begin again: the image may lack decisions that it has appended."""
        self._awaiting_news: list[asyncio.Future[None]] = []
        loader.foresee(self._committed)
        loader.listen(lambda _: self._tell_news())
        loader.on_failure(self._failed)

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
        await self._loader.wait_for(0)

    async def close(self) -> None:
        """Refuses from now on; returns when no decision is being appended any more."""
        self._is_closed = True
        self._deactivate(NotControllerError("the controller is shutting down"))
        for upkeep in self._ended:
            await upkeep.wait_ended()
        await self._runtime.close(NotControllerError("the controller is shutting down"))

    # Topics and configs

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicCreated]:
        await self._active().until_found()
        return await self._change(
            lambda state: create_topics(
                state, topics, self._settings, self._random, validate_only=validate_only
            )
        )

    async def delete_topics(self, topics: Sequence[TopicRef]) -> list[TopicResult]:
        return await self._change(lambda state: delete_topics(state, topics, self._settings))

    async def create_partitions(
        self, changes: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> list[TopicResult]:
        await self._active().until_found()
        return await self._change(
            lambda state: create_partitions(
                state, changes, self._settings, self._random, validate_only=validate_only
            )
        )

    async def wait_ready(
        self, topics: Iterable[str], deadline_ms: int, *, first_partition: Mapping[str, int] | None = None
    ) -> dict[str, list[str]]:
        """Returns when all replicas of these topics are ready (of those with more partitions than before: from the
        first new one on), or else at the deadline with what is not, in words, by topic."""
        upkeep = self._active()
        offset = self._loader.image.offset
        wanted = {name: (first_partition or {}).get(name, 0) for name in topics}
        while True:
            found = unready(self._loader.image, upkeep.sessions, wanted, offset)
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if not found or left_ms <= 0:
                return found
            await self._news(left_ms)
            if self._upkeep is not upkeep:
                raise _not_controller()

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[ConfigChange]],
        *,
        incremental: bool,
        validate_only: bool = False,
    ) -> list[ConfigResult]:
        return await self._change(
            lambda state: alter_configs(
                state, changes, self._settings, incremental=incremental, validate_only=validate_only
            )
        )

    # Brokers

    async def register_broker(self, broker: Registration, *, from_afar: bool = False) -> int:
        """The broker's epoch. A broker that is not `from_afar` is in this process, so its former life is over."""
        upkeep = self._active()
        sessions = upkeep.sessions

        def decide(state: ControllerState) -> Decision[Record, int | None]:
            now_ms = self._clock.monotonic_ms()
            known = state.image.brokers.get(broker.broker_id)
            if not from_afar and known is not None and known.incarnation_id != broker.incarnation_id:
                sessions.cut_short(known.broker_id, known.epoch, now_ms)
            decision = register_broker(state, self._settings, broker, sessions, now_ms)
            abandoned.extend(left_without_records(state.image, decision.records))
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
        sessions.begin(broker.broker_id, epoch, self._clock.monotonic_ms())
        upkeep.sessions_changed()
        return epoch

    async def unregister_broker(self, broker_id: int) -> None:
        upkeep = self._active()
        while not await self._runtime.submit(
            lambda state: unregister_broker(state, self._settings, broker_id)
        ):
            pass
        # At once: if it is alive it registers anew, and that session must stay.
        upkeep.sessions.forget(broker_id)
        await self._until_published()

    async def heartbeat(self, beat: Heartbeat) -> HeartbeatReply:
        upkeep = self._active()
        sessions = upkeep.sessions
        now_ms = self._clock.monotonic_ms()
        confirmed_age_ms = self._confirmed_age_ms(now_ms)
        if sessions.heard(beat, now_ms):
            self._tell_news()

        def decide(state: ControllerState) -> Decision[Record, HeartbeatReply]:
            failed_have_changed = note_failed(state, beat)
            decision = heartbeat(state, self._settings, beat, sessions)
            # What else has to be done is not waited for: the broker's lease runs on the answer.
            if len(decision.records) == RECORDS_PER_DECISION_MAX:
                upkeep.finish(beat.broker_id)
            if failed_have_changed or beat.not_ready:
                upkeep.replicas_failed(beat)
            if sessions.of(beat.broker_id, beat.broker_epoch) is None:
                # Whoever registered it did not wait for the answer. It must not be unfenced and unwatched.
                sessions.begin(beat.broker_id, beat.broker_epoch, self._clock.monotonic_ms())
                upkeep.sessions_changed()
            return decision

        reply = await self._runtime.submit(decide)
        if beat.wants_shutdown and reply.should_shut_down:
            sessions.cut_short(beat.broker_id, beat.broker_epoch, self._clock.monotonic_ms())
        return HeartbeatReply(
            reply.is_caught_up, reply.is_fenced, reply.should_shut_down, confirmed_age_ms=confirmed_age_ms
        )

    def _confirmed_age_ms(self, now_ms: int) -> int:
        """How long ago a majority last confirmed this controller.

        A controller that is cut off does not know of its successor, and must not prolong leases that the successor
        takes to have run out. So leases count from this time, and it stops to answer before there can be another.
        """
        age_ms = now_ms - self._quorum.confirmed_ms
        if not self._quorum.is_leader or age_ms > self._settings.static.quorum_fetch_timeout_ms:
            raise NotControllerError("This controller has not heard of a majority of the quorum lately.")
        return max(age_ms, 0)

    def broker_connection_closed(self, broker_id: int, broker_epoch: int) -> None:
        """A connection on which this broker's heartbeats came has closed."""
        if self._upkeep is not None:
            self._upkeep.connection_closed(broker_id, broker_epoch)

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """A block of producer ids that nobody has had before."""
        return await self._runtime.submit(lambda state: allocate_producer_ids(state, broker_id, broker_epoch))

    # Partitions

    async def alter_in_sync(
        self, broker_id: int, broker_epoch: int, changes: Sequence[InSyncChange]
    ) -> list[InSyncResult]:
        return await self._runtime.submit(
            lambda state: alter_in_sync(state, self._settings, broker_id, broker_epoch, changes)
        )

    async def elect_leaders(
        self, election: ElectionType, partitions: Sequence[tuple[str, int]] | None
    ) -> list[PartitionResult]:
        """For an unclean election the live replicas are first asked for the ends of their logs. Where one does not
        answer nobody is elected: its log may be the longest."""
        upkeep = self._active()
        if election is not ElectionType.UNCLEAN:
            return await self._change(
                lambda state: elect_leaders(state, self._settings, election, partitions)
            )

        def ask(state: ControllerState) -> Decision[Record, Inquiry]:
            wanted = unclean_candidates(state, self._settings, _named(state, partitions))
            return Decision([], Inquiry(state, wanted))

        inquiry = await self._runtime.submit(ask)
        await upkeep.ask_patiently(inquiry)
        return await self._change(
            lambda state: elect_leaders(
                state, self._settings, election, partitions, inquiry.log_ends(state, whole=True)
            )
        )

    async def alter_reassignments(
        self, reassignments: Sequence[Reassignment], allow_rf_change: bool = True
    ) -> list[PartitionResult]:
        return await self._change(
            lambda state: alter_reassignments(
                state, self._settings, reassignments, allow_rf_change=allow_rf_change
            )
        )

    def list_reassignments(
        self, partitions: Sequence[tuple[str, int]] | None = None
    ) -> list[OngoingReassignment]:
        self._active()
        return list_reassignments(self._loader.image, partitions)

    # Becoming active and ceasing to be

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """The quorum has another leader, or none: decisions could not be committed any more."""
        term = self._loader.committed.controller_epoch
        if self.is_active and (leader_id != self._node_id or epoch != term):
            self._deactivate(_not_controller())

    async def _change(self, decide: Callable[[ControllerState], Decision[Record, T]]) -> T:
        """For clients: whoever looks at this node afterwards sees what was changed."""
        reply = await self._runtime.submit(decide)
        await self._until_published()
        return reply

    async def _until_published(self) -> None:
        """All of this node has what is committed now."""
        try:
            await self._loader.wait_for(self._loader.committed.offset)
        except Exception as error:
            raise _failed_metadata(error) from error

    def _committed(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """It holds the record by which its controller began, and all before it, so from here on that controller may
        decide. The other parts of this node are not waited for: one that has just started opens its logs, and all
        leases would run out meanwhile."""
        elected = image.controller_id == self._node_id and image.controller_epoch == self._quorum.epoch
        if self.is_active and not elected:
            self._deactivate(_not_controller())
        elif elected and self._quorum.is_leader and not self.is_active and not self._is_closed:
            self._activate(image)
        self._former_controller = image.controller_id
        self._runtime.committed(image.offset + 1)
        if self._upkeep is not None and self._state is not None:
            self._upkeep.image_changed(has_leaderless(self._state))

    def _activate(self, image: ClusterImage) -> None:
        log.info("controller is active", epoch=image.controller_epoch, offset=image.offset)
        self._state = ControllerState(image)
        self._runtime.load(self._state, image.offset + 1)
        self._upkeep = Upkeep(
            self._node_id,
            self._runtime,
            self._settings,
            self._clock,
            image,
            former_controller=self._former_controller,
            silent_ms=self._quorum.silent_ms,
            probe=self._probe,
            ask_log_end=self._ask_log_end,
        )

    def _deactivate(self, error: BaseException) -> None:
        if self._upkeep is not None:
            self._upkeep.end()
            self._ended = [each for each in self._ended if not each.has_ended]
            self._ended.append(self._upkeep)
        self._upkeep = self._state = None
        self._runtime.unload(error, in_doubt=_in_doubt() if isinstance(error, NotControllerError) else None)
        self._tell_news()

    def _failed(self, error: BaseException) -> None:
        self._deactivate(_failed_metadata(error))

    def _active(self) -> Upkeep:
        if self._upkeep is None or not self._runtime.is_loaded:
            raise _not_controller()
        return self._upkeep

    # News for those who wait until something is ready

    async def _news(self, within_ms: int) -> None:
        """Returns when something has changed in what is ready, or the time is over."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()
        self._awaiting_news.append(told)
        timer = loop.call_later(within_ms / 1000, _tell, told)
        try:
            await told
        finally:
            timer.cancel()
            if told in self._awaiting_news:
                self._awaiting_news.remove(told)

    def _tell_news(self) -> None:
        awaiting, self._awaiting_news = self._awaiting_news, []
        for told in awaiting:
            _tell(told)


def _tell(told: "asyncio.Future[None]") -> None:
    if not told.done():
        told.set_result(None)


def _named(state: ControllerState, partitions: Sequence[tuple[str, int]] | None) -> Sequence[tuple[str, int]]:
    """An administrator who names no partitions means all that have no leader."""
    return state.index.leaderless() if partitions is None else partitions


def _in_doubt() -> RequestTimedOutError:
    """For changes that the next controller may find in the log: NOT_CONTROLLER would say that nothing was done, and
    nodes that hand requests on would ask again."""
    return RequestTimedOutError(
        "The controller moved before it could say whether this was done: look before trying again."
    )


def _failed_metadata(error: BaseException) -> StorageError:
    return StorageError(f"the metadata of this node has failed: {error}")


def _not_controller() -> NotControllerError:
    return NotControllerError("This is not the correct controller for this cluster.")
