"""The groups of one partition of `__consumer_offsets`, while this node leads it in one epoch.

A shard runs the decisions of the pure state, keeps the requests that wait for their answers, and is the clock of
the state's deadlines: one timer, whatever the number of groups. When it is over nobody is left waiting.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from moldau.coordinator.runtime import DecisionRuntime
from moldau.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    InvalidCommitOffsetSizeError,
    MoldauError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderError,
    RecordTooLargeError,
    RequestTimedOutError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from moldau.groups.loading import OffsetsLog, load
from moldau.groups.records import GroupRecord
from moldau.groups.requests import NOTHING_DECIDED, Answer, GroupDecision, Now, Reply, Ticket, TopicKey
from moldau.groups.state import GroupsState
from moldau.metadata.image import TopicImage
from moldau.observe.logging import get_logger
from moldau.partitions.partition import Partition
from moldau.partitions.waiting import Listeners
from moldau.platform.clock import Clock

log = get_logger(__name__)

Step = Callable[[GroupsState, Now, Ticket], GroupDecision]
Round = Callable[[GroupsState, Now], GroupDecision | None]
"""None: there is nothing more to decide."""

NO_TURNS = nullcontext()

REST_MS = 1_000
"""How long timers rest after their decision could not be written, so that a full disk is not asked all the time."""


class _Flight:
    """A decision on its way: asked for, decided, written, committed."""

    __slots__ = ("deadline_ms", "decision", "is_commit", "is_given_up", "is_over", "then", "ticket")

    def __init__(
        self,
        ticket: Ticket | None,
        deadline_ms: int,
        *,
        is_commit: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        self.ticket = ticket
        """Of the request that asks; None where a timer does."""
        self.deadline_ms = deadline_ms
        self.is_commit = is_commit
        self.then = then
        """What follows when its records are committed."""
        self.decision: GroupDecision | None = None
        self.is_given_up = False
        """Who asked was told that it came to nothing, so nothing is to come of it."""
        self.is_over = False

    @property
    def tickets(self) -> list[Ticket]:
        """Whose answers are on it."""
        if self.decision is not None:
            return [answer.ticket for answer in self.decision.reply]
        return [] if self.ticket is None else [self.ticket]


class Shard:
    def __init__(self, partition: Partition, clock: Clock, *, commit_timeout_ms: int) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.bugs = 0
        """Decisions of timers that ended in an exception nobody planned for."""
        self.is_loading = True
        self.deleted_topics: dict[TopicKey, int] = {}
        """Topics that are no more, and whose offsets may not all be forgotten yet; and since when, in ms."""
        self._clock = clock
        self._commit_timeout_ms = commit_timeout_ms
        self._runtime: DecisionRuntime[GroupsState, GroupRecord] = DecisionRuntime(
            OffsetsLog(partition, self.leader_epoch, clock), refuse_with=self._refusal
        )
        self._state: GroupsState | None = None
        self._listening: list[tuple[Listeners, int]] = []
        self._waiting: dict[Ticket, asyncio.Future[Reply]] = {}
        self._last_ticket = 0
        self._flights: deque[_Flight] = deque()
        """In the order they began, so in that of their deadlines; all have the same time."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._tick_is_under_way = False
        self._tick_not_before_ms = 0

    # Beginning and ending

    @property
    def is_serving(self) -> bool:
        return self._state is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to load."""
        return self.partition.log.start_offset == self.partition.log.end_offset

    @property
    def record_bytes_max(self) -> int:
        """What one record can have at most."""
        return self.partition.log.settings.max_message_bytes

    async def load(
        self,
        state: GroupsState,
        bytes_per_read: int,
        reading: AbstractAsyncContextManager[object] = NO_TURNS,
    ) -> None:
        """Reads the log, within `reading`, and begins to serve; where that fails, the groups of this shard alone are
        not served. If it is still loading afterwards, what failed may pass, and it is to be loaded again."""
        try:
            end_offset = await load(self.partition, self.leader_epoch, state, bytes_per_read, reading)
        except Exception as error:
            if self.is_loading:
                self._load_failed(error)
        else:
            if self.is_loading:
                self.serve(state, end_offset)

    def serve(self, state: GroupsState, end_offset: int) -> None:
        """Begins to answer from a state that holds all of the log."""
        self._state = state
        self.is_loading = False
        self._runtime.load(state, end_offset)
        for news in (self.partition.progress, self.partition.without_lease):
            self._listening.append((news, news.add(self._progressed)))
        self.run(lambda state, now: state.loaded(now))
        self._progressed()
        self._forget_deleted()

    def unload(self, error: MoldauError) -> None:
        """It is over: whoever waits gets the error, and whoever comes later has come to the wrong node."""
        self.is_loading = False
        self._state = None
        for news, ticket in self._listening:
            news.remove(ticket)
        self._listening.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._flights.clear()
        self._runtime.unload(error)
        self._refuse_waiting(error)

    def _refuse_waiting(self, error: MoldauError) -> None:
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            if not answered.done():
                answered.set_exception(error)

    async def close(self) -> None:
        """Unloads; returns when nothing of it is being written any more."""
        error = self._is_over()
        self.unload(error)
        # A bug that ends the runtime is told to who asked; nobody else may stumble over it.
        await asyncio.gather(self._runtime.close(error), return_exceptions=True)

    def _load_failed(self, error: Exception) -> None:
        is_offline = self.partition.failure is not None or self.partition.log.failure is not None
        # A lease that has ended may come back, and nobody else may have led meanwhile.
        is_same_leader = self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch
        is_transient = isinstance(error, StorageError) or (
            isinstance(error, NotLeaderError) and is_same_leader
        )
        if is_transient and not is_offline:
            log.warning("groups cannot be loaded yet", partition=str(self.partition.name), why=str(error))
            return
        self.unload(self._is_over())
        if not isinstance(error, NotLeaderError | FencedLeaderEpochError):
            self._report(
                "groups cannot be loaded and are not served: stop the node, look at the partition with `moldau "
                "log verify`, restore it from a replica or a backup, and start again",
                error,
            )

    def _refusal(self) -> MoldauError:
        if self.is_loading:
            return CoordinatorLoadInProgressError(f"the groups of {self.partition.name} are being loaded")
        return self._is_over()

    def _is_over(self) -> MoldauError:
        return NotCoordinatorError(f"the groups of {self.partition.name} are not served here")

    def _without_lease(self) -> MoldauError:
        """Clients go and look for the coordinator, which may be another one by now."""
        return NotCoordinatorError(
            f"this node has not heard of the controller for too long to answer for {self.partition.name}"
        )

    def _report(self, message: str, error: BaseException) -> None:
        try:
            raise error
        except MoldauError:
            log.error(message, partition=str(self.partition.name), why=str(error))
        except Exception:
            self.bugs += 1
            log.exception(message, partition=str(self.partition.name))

    # Deciding

    def ask(self, step: Step, *, is_commit: bool = False) -> "asyncio.Future[Reply]":
        """Decides for a request, and gives what its answer will come in; raises where nothing is loaded, or this node
        may not answer."""
        if not self.partition.has_lease:
            raise self._without_lease()
        if self._state is not None:
            # A lease that comes back tells nobody: what was committed without one may be told from now on.
            self._progressed()
        if self._state is None:
            raise self._refusal()
        self._last_ticket += 1
        ticket = self._last_ticket
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = answered
        flight = self._flight(ticket, is_commit=is_commit)
        self._begin(flight, lambda state: step(state, self._now(), ticket))
        return answered

    def run(self, decide: Round) -> None:
        """Decides on the broker's own account: nobody waits for it."""
        if self._state is not None:
            self._begin(self._flight(None), lambda state: decide(state, self._now()))

    def repeat(self, decide: Round) -> None:
        """As `run`, again and again until there is nothing more to decide."""
        if self._state is not None:
            flight = self._flight(None, then=lambda: self.repeat(decide))
            self._begin(flight, lambda state: decide(state, self._now()))

    def forget(self, topics: Iterable[TopicKey]) -> None:
        """Topics are deleted: their offsets go as soon as there is a state and a log that takes it."""
        self.deleted_topics.update(dict.fromkeys(topics, self._clock.wall_ms()))
        self._forget_deleted()

    def forget_former(self, topics: Mapping[str, TopicImage]) -> None:
        """Only these topics are there: others were deleted, and a crash may have come before that was written here."""
        if self._state is not None:
            self.forget(
                [
                    (name, topic_id)
                    for name, topic_id in self._state.topics()
                    if topic_id is not None and (name not in topics or topics[name].topic_id != topic_id)
                ]
            )

    def upkeep(self) -> None:
        """What is due from time to time: offsets that have expired, and what could not be forgotten before."""
        self.repeat(lambda state, now: state.expire(now))
        self._forget_deleted()

    def _forget_deleted(self) -> None:
        topics = dict(self.deleted_topics)

        def forget(state: GroupsState, now: Now) -> GroupDecision | None:
            decision = state.forget_topics(now, topics)
            if decision is None:
                for key, deleted_ms in topics.items():
                    # It may have been made anew and deleted again since.
                    if self.deleted_topics.get(key) == deleted_ms:
                        del self.deleted_topics[key]
            return decision

        if topics:
            self.repeat(forget)

    def _flight(
        self, ticket: Ticket | None, *, is_commit: bool = False, then: Callable[[], None] | None = None
    ) -> _Flight:
        deadline_ms = self._clock.monotonic_ms() + self._commit_timeout_ms
        return _Flight(ticket, deadline_ms, is_commit=is_commit, then=then)

    def _begin(self, flight: _Flight, decide: Callable[[GroupsState], GroupDecision | None]) -> None:
        def decide_now(state: GroupsState) -> GroupDecision:
            decision = None if flight.is_given_up else decide(state)
            if decision is None:
                flight.then = None
                decision = NOTHING_DECIDED
            flight.decision = decision
            self._arm()
            return decision

        self._flights.append(flight)
        self._runtime.start(decide_now).add_done_callback(lambda landed: self._landed(flight, landed))
        self._arm()

    def _landed(self, flight: _Flight, landed: "asyncio.Future[Sequence[Answer]]") -> None:
        flight.is_over = True
        while self._flights and self._flights[0].is_over:
            self._flights.popleft()
        error = landed.exception()
        if error is not None:
            self._failed(flight, error)
        elif flight.decision is not None:
            # Whatever was decided: without a lease another node may coordinate, and know better.
            refusal = None if self.partition.has_lease else self._without_lease()
            for ticket, reply in flight.decision.reply:
                self._answer(ticket, refusal or reply)
            if flight.then is not None:
                flight.then()
        if self._state is not None:
            self._arm()

    def _failed(self, flight: _Flight, error: BaseException) -> None:
        """The request was refused, or its records could not be written, or a bug showed."""
        if flight.decision is not None:
            error = _why_not_written(error, is_commit=flight.is_commit)
        for ticket in flight.tickets:
            self._answer(ticket, error)
        if self._state is None:
            return
        if flight.ticket is None:
            self._tick_not_before_ms = self._clock.monotonic_ms() + REST_MS
            self._report("a change of groups is not written", error)
        if not self._runtime.is_loaded or self.partition.log.failure is not None:
            self._give_up(error)

    def _answer(self, ticket: Ticket, reply: Reply | BaseException) -> None:
        """A ticket that is not known any more was answered before: it was late."""
        answered = self._waiting.pop(ticket, None)
        if answered is None or answered.done():
            return
        if isinstance(reply, BaseException):
            answered.set_exception(reply)
        else:
            answered.set_result(reply)

    def _progressed(self) -> None:
        is_over = not self.partition.is_leader or self.partition.leader_epoch != self.leader_epoch
        if self.partition.failure is not None or is_over:
            self._give_up(self.partition.failure)
        elif self.partition.has_lease:
            self._runtime.committed(self.partition.high_watermark)
        else:
            # Others may coordinate already, and nothing that is decided here may be said.
            self._refuse_waiting(self._without_lease())

    def _give_up(self, error: BaseException | None) -> None:
        if error is not None:
            self._report("groups are not served any more until the node is restarted", error)
        self.unload(self._is_over())

    # Time

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ms(), self._clock.wall_ms())

    def _arm(self) -> None:
        due_ms = self._due_ms()
        if due_ms is None:
            return
        if self._alarm is not None:
            # One that rings too early is cheaper than a new one for every heartbeat.
            if self._alarm_ms <= due_ms:
                return
            self._alarm.cancel()
        self._alarm_ms = due_ms
        delay_ms = max(0, due_ms - self._clock.monotonic_ms())
        self._alarm = asyncio.get_running_loop().call_later(delay_ms / 1000, self._ring)

    def _due_ms(self) -> int | None:
        assert self._state is not None
        late_ms = self._flights[0].deadline_ms if self._flights else None
        tick_ms = None if self._tick_is_under_way else self._state.next_deadline_ms
        if tick_ms is not None:
            tick_ms = max(tick_ms, self._tick_not_before_ms)
        return min((each for each in (late_ms, tick_ms) if each is not None), default=None)

    def _ring(self) -> None:
        assert self._state is not None, "unloading stops the alarm"
        self._alarm = None
        now_ms = self._clock.monotonic_ms()
        while self._flights and self._flights[0].deadline_ms <= now_ms:
            late = self._flights.popleft()
            late.is_given_up = late.ticket is not None and late.decision is None
            for ticket in late.tickets:
                self._answer(
                    ticket, CoordinatorNotAvailableError("the change is not safe in time: try again")
                )
        due_ms = self._state.next_deadline_ms
        if due_ms is not None and max(due_ms, self._tick_not_before_ms) <= now_ms:
            self._tick()
        self._arm()

    def _tick(self) -> None:
        if self._tick_is_under_way:
            return
        self._tick_is_under_way = True

        def tick(state: GroupsState, now: Now) -> GroupDecision:
            self._tick_is_under_way = False
            return state.tick(now)

        self.run(tick)


def _why_not_written(error: BaseException, *, is_commit: bool) -> BaseException:
    """What a member is told when the log does not take a decision's records, as Kafka tells it."""
    if isinstance(error, NotEnoughReplicasError | UnknownTopicOrPartitionError | RequestTimedOutError):
        return CoordinatorNotAvailableError(str(error))
    if isinstance(error, StorageError | NotLeaderError | FencedLeaderEpochError):
        return NotCoordinatorError(str(error))
    if isinstance(error, RecordTooLargeError):
        return InvalidCommitOffsetSizeError(str(error)) if is_commit else MoldauError(str(error))
    return error
