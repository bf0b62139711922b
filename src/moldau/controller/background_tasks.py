"""What the active controller does unasked: it fences who has fallen silent or is gone, finishes what was left half
done, elects where nobody in sync is left, and gives leadership back to those who should have it.

It lives from the moment the controller becomes active until it no longer is. Everything it changes is a decision like
any other, so nothing it does can reach a log that this node does not lead any more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from moldau.controller.balance import balance_partition_leaders
from moldau.controller.cluster_control import (
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    fence_broker,
    reconcile_broker,
    update_features,
)
from moldau.controller.elections import elect_unclean_leaders, reconcile_elrs, unclean_election_candidates
from moldau.controller.heartbeat_manager import BrokerHeartbeatManager, remaining_session_ms
from moldau.controller.index import PartitionName
from moldau.controller.log_end_query import LogEndQuery
from moldau.controller.offline_replicas import remove_offline_replicas
from moldau.controller.requests import BrokerHeartbeat
from moldau.controller.state import ControllerState
from moldau.coordinator import CoordinatorResult
from moldau.coordinator.runtime import CoordinatorRuntime
from moldau.errors import MoldauError, NotControllerError, PeerUnreachableError, RequestTimedOutError
from moldau.metadata.image import NO_LEADER, MetadataImage
from moldau.metadata.records import Record
from moldau.observe.logging import get_logger
from moldau.peers.probe import ProbeResult
from moldau.platform.clock import Clock
from moldau.raft.messages import EpochEndOffset
from moldau.settings.effective import EffectiveSettings

log = get_logger("controller")

ProbeBroker = Callable[[int], Awaitable[ProbeResult]]
FetchLogEnd = Callable[[int, str, int], Awaitable[EpochEndOffset]]

PROBE_DELAYS_S = (0.0, 0.05, 0.25, 1.0)
"""When a broker whose connection closed is looked for. A process that dies closes its connections one by one, and may
seem to be there for a moment still."""
PROBE_CONFIRM_DELAY_S = 0.05
PROBE_WAIT_S_MAX = 0.15
"""So long it is waited for what comes of looking for a broker, before new replicas are given to it."""
STALL_THRESHOLD_MS = 200
"""A timer later than this says that the node itself was held up."""
LOG_END_ATTEMPTS_MAX = 3
"""How often a live replica that does not answer is asked for the end of its log, before others are elected without."""
LOG_END_RETRY_S = 1.0
SUBMIT_RETRY_S = 0.5
"""When a decision is made again that the metadata log could not take, because its disk was full for example."""


class BackgroundTasks:
    def __init__(
        self,
        node_id: int,
        runtime: CoordinatorRuntime[ControllerState, Record],
        settings: EffectiveSettings,
        clock: Clock,
        image: MetadataImage,
        *,
        previous_controller: int,
        leader_silence_ms: int,
        probe: ProbeBroker | None,
        fetch_log_end: FetchLogEnd | None,
    ) -> None:
        """Begins, on a runtime that has just been loaded with `image`. `leader_silence_ms`: for how long
        those who elected
        this controller had heard nothing of the one before."""
        self._node_id = node_id
        self._runtime = runtime
        self._settings = settings
        self._clock = clock
        self._probe = probe
        self._ask_log_end = fetch_log_end
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rerun_requested: dict[str, None] = {}
        self._suspected_brokers: dict[int, None] = {}
        """Brokers that are being looked for, and of which nothing was found yet, or a refusal."""
        self._probe_waiters: list[asyncio.Future[None]] = []
        self._offline_reports: dict[int, BrokerHeartbeat] = {}
        """The newest heartbeat of each broker that told of failed logs."""
        self._has_stopped = False
        static = settings.static
        self.heartbeat_manager = BrokerHeartbeatManager(static.broker_session_timeout_ms)
        now_ms = clock.monotonic_ms()
        self.heartbeat_manager.initialize(
            now_ms,
            image.brokers,
            image.offset,
            previous_controller=None if previous_controller == node_id else previous_controller,
            previous_session_ms=remaining_session_ms(static.broker_session_timeout_ms, leader_silence_ms),
        )
        self._next_balance_ms = now_ms + static.leader_imbalance_check_interval_seconds * 1000
        # Submitted before anything that comes from outside: whoever registers does so on these levels.
        self._feature_update = None if METADATA_VERSION in image.features else runtime.start(_update_features)
        if probe is not None:
            self._suspected_brokers = dict.fromkeys(self._brokers_to_probe(image))
        self._start_task("take over", partial(self._initialize_term, image))
        self._schedule_timer()

    def stop(self) -> None:
        """The controller is no longer active."""
        self._has_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in list(self._tasks.values()):
            task.cancel()
        for each in self._probe_waiters:
            _wake(each)

    @property
    def has_stopped(self) -> bool:
        """Whether nothing of it is under way any more."""
        return self._has_stopped and not self._tasks

    async def wait_stopped(self) -> None:
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # What it is told

    def reschedule_timer(self) -> None:
        """A session has begun: its end may be the next thing to wait for."""
        self._schedule_timer()

    def on_connection_closed(self, broker_id: int, broker_epoch: int) -> None:
        """A connection on which this broker's heartbeats came has closed: perhaps its process is gone."""
        name = f"probe {broker_id} of epoch {broker_epoch}"
        if self._probe is not None:
            self._suspected_brokers[broker_id] = None
        self._start_task(name, partial(self._check_broker, broker_id, broker_epoch))

    def start_reconciliation(self, broker_id: int) -> None:
        """A decision on this broker was too large, and the rest is to be done."""
        self._start_task(f"finish {broker_id}", partial(self._reconcile_broker, broker_id))

    def on_offline_replicas(self, beat: BrokerHeartbeat) -> None:
        """A broker says which of its logs have failed, or that none has any more."""
        self._offline_reports[beat.broker_id] = beat
        name = f"failed logs of {beat.broker_id}"
        self._start_task(name, partial(self._remove_offline_replicas, beat.broker_id))

    def on_image_change(self, has_leaderless_partitions: bool) -> None:
        if has_leaderless_partitions:
            self._start_unclean_elections()

    async def wait_until_probed(self) -> None:
        """Returns when nobody is suspected to be gone, or after a moment: a new topic should not get replicas on a
        broker whose process has just ended, and whoever creates it wait for them."""
        if not self._suspected_brokers:
            return
        loop = asyncio.get_running_loop()
        found: asyncio.Future[None] = loop.create_future()
        self._probe_waiters.append(found)
        timer = loop.call_later(PROBE_WAIT_S_MAX, _wake, found)
        try:
            await found
        finally:
            timer.cancel()

    # Time

    def _schedule_timer(self) -> None:
        """One timer, on whatever comes next. One that turns out to be early is set again when it goes off."""
        if self._has_stopped:
            return
        due = min(self._next_balance_ms, self.heartbeat_manager.next_deadline_ms or self._next_balance_ms)
        if self._timer is not None:
            if self._timer_ms <= due:
                return
            self._timer.cancel()
        self._timer_ms = due
        delay_ms = max(due - self._clock.monotonic_ms(), 1)
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - self._timer_ms
        if late_ms > STALL_THRESHOLD_MS:
            # Heartbeats that came meanwhile have not been read yet: nobody is fenced for that.
            log.warning("the controller was held up", late_ms=late_ms)
            self.heartbeat_manager.extend_sessions(late_ms)
        for session in self.heartbeat_manager.take_expired(now_ms):
            name = f"fence {session.broker_id} of epoch {session.broker_epoch}"
            self._start_task(name, partial(self._fence_expired, session.broker_id, session.broker_epoch))
        if now_ms >= self._next_balance_ms:
            self._next_balance_ms = (
                now_ms + self._settings.static.leader_imbalance_check_interval_seconds * 1000
            )
            if self._settings.broker.auto_leader_rebalance_enable:
                self._start_task("balance", self._balance_leaders)
        self._schedule_timer()

    # Who is alive

    async def _initialize_term(self, image: MetadataImage) -> None:
        """Looks after every broker at once, and finishes what the controller before had begun: it may have ended
        between two decisions that belong together."""
        if self._feature_update is not None:
            try:
                await self._feature_update
            except (NotControllerError, RequestTimedOutError):
                raise
            except MoldauError as error:
                log.error("the controller cannot write its decision", why=str(error))
                await self._submit_with_retry(_update_features)
        for broker_id in self._brokers_to_probe(image):
            self.on_connection_closed(broker_id, image.brokers[broker_id].epoch)
        for broker_id in sorted(image.brokers):
            await self._reconcile_broker(broker_id)
        while not await self._submit_with_retry(lambda state: reconcile_elrs(state, self._settings)):
            pass

    def _brokers_to_probe(self, image: MetadataImage) -> list[int]:
        return [
            broker_id
            for broker_id in sorted(image.brokers)
            if broker_id != self._node_id and not image.brokers[broker_id].fenced
        ]

    async def _check_broker(self, broker_id: int, broker_epoch: int) -> None:
        try:
            await self._fence_if_dead(broker_id, broker_epoch)
        finally:
            self._clear_suspicion(broker_id)

    def _clear_suspicion(self, broker_id: int) -> None:
        self._suspected_brokers.pop(broker_id, None)
        if not self._suspected_brokers:
            awaiting, self._probe_waiters = self._probe_waiters, []
            for each in awaiting:
                _wake(each)

    async def _fence_if_dead(self, broker_id: int, broker_epoch: int) -> None:
        session = self.heartbeat_manager.of(broker_id, broker_epoch)
        if session is None:
            return
        seen_count = session.heartbeat_count
        for after_s in PROBE_DELAYS_S:
            if after_s:
                await asyncio.sleep(after_s)
            if session.heartbeat_count != seen_count:
                return
            if await self._is_refused(broker_id) and await self._is_still_refused(broker_id):
                await self._fence_broker(
                    broker_id,
                    broker_epoch,
                    "its process is gone",
                    cancel_if=lambda: session.heartbeat_count != seen_count,
                )
                if session.heartbeat_count == seen_count:
                    # Its next life need not wait for the end of this one.
                    self.heartbeat_manager.expire_session(broker_id, broker_epoch, self._clock.monotonic_ms())
                return
            self._clear_suspicion(broker_id)

    async def _is_still_refused(self, broker_id: int) -> bool:
        """One refusal may come from a listener that is just being opened, or from something in between."""
        await asyncio.sleep(PROBE_CONFIRM_DELAY_S)
        return await self._is_refused(broker_id)

    async def _is_refused(self, broker_id: int) -> bool:
        try:
            return self._probe is not None and await self._probe(broker_id) is ProbeResult.REFUSED
        except MoldauError as error:
            log.warning("a broker cannot be looked for", broker=broker_id, why=str(error))
            return False

    async def _fence_expired(self, broker_id: int, broker_epoch: int) -> None:
        await self._fence_broker(
            broker_id,
            broker_epoch,
            "nothing was heard of it",
            cancel_if=lambda: self.heartbeat_manager.has_valid_session(
                broker_id, broker_epoch, self._clock.monotonic_ms()
            ),
        )

    async def _fence_broker(
        self, broker_id: int, broker_epoch: int, why: str, *, cancel_if: Callable[[], bool]
    ) -> None:
        """`cancel_if` is looked at when the decision is made: a heartbeat may have come since."""
        outcome = "left alone"

        def decide(state: ControllerState) -> CoordinatorResult[Record, bool]:
            nonlocal outcome
            if cancel_if():
                return CoordinatorResult([], True)
            decision = fence_broker(state, self._settings, broker_id, broker_epoch)
            if decision.records:
                outcome = "fenced"
            return decision

        is_finished = await self._submit_with_retry(decide)
        if outcome == "fenced":
            log.warning("broker is fenced", broker=broker_id, epoch=broker_epoch, why=why)
        if not is_finished:
            await self._reconcile_broker(broker_id)

    async def _reconcile_broker(self, broker_id: int) -> None:
        while not await self._submit_with_retry(
            lambda state: reconcile_broker(state, self._settings, broker_id)
        ):
            pass

    async def _remove_offline_replicas(self, broker_id: int) -> None:
        while await self._submit_with_retry(
            lambda state: remove_offline_replicas(state, self._settings, self._offline_reports[broker_id])
        ):
            pass
        # A log that is open again may be the only one to elect, and no record tells of it.
        self._start_unclean_elections()

    async def _submit_with_retry(
        self, decide: Callable[[ControllerState], CoordinatorResult[Record, Any]]
    ) -> Any:
        """Until the metadata log takes it; raises NotControllerError when this controller's time is over."""
        while True:
            try:
                return await self._runtime.submit(decide)
            except (NotControllerError, RequestTimedOutError):
                raise
            except MoldauError as error:
                log.error("the controller cannot write its decision", why=str(error))
                await asyncio.sleep(SUBMIT_RETRY_S)

    # Who leads

    async def _balance_leaders(self) -> None:
        while await self._submit_with_retry(lambda state: balance_partition_leaders(state, self._settings)):
            pass

    def _start_unclean_elections(self) -> None:
        if self._ask_log_end is not None:
            self._start_task("elect", self._run_unclean_elections)

    async def _run_unclean_elections(self) -> None:
        """Goes on until no live replica is left that could help."""
        asked = 0
        while not (query := await self._submit_with_retry(self._query_candidates)).is_empty:
            await self._query_once(query)
            asked += 1
            if query.is_complete or asked >= LOG_END_ATTEMPTS_MAX:
                asked = 0
                await self._submit_with_retry(
                    lambda state: elect_unclean_leaders(state, self._settings, query.log_ends(state))
                )
            await asyncio.sleep(LOG_END_RETRY_S)

    def _query_candidates(self, state: ControllerState) -> CoordinatorResult[Record, LogEndQuery]:
        return CoordinatorResult([], LogEndQuery(state, unclean_election_candidates(state, self._settings)))

    async def query_log_ends(self, query: LogEndQuery) -> None:
        """Returns when all have answered, or were asked often enough."""
        for _ in range(LOG_END_ATTEMPTS_MAX - 1):
            await self._query_once(query)
            if query.is_complete:
                return
            await asyncio.sleep(LOG_END_RETRY_S)
        await self._query_once(query)

    async def _query_once(self, query: LogEndQuery) -> None:
        await asyncio.gather(*(self._query_broker(query, *each) for each in query.pending().items()))

    async def _query_broker(self, query: LogEndQuery, broker_id: int, names: Sequence[PartitionName]) -> None:
        if self._ask_log_end is None:
            return
        for name in names:
            try:
                query.record_response(broker_id, name, await self._ask_log_end(broker_id, *name))
            except (PeerUnreachableError, RequestTimedOutError) as error:
                log.warning("a broker does not say where its logs end", broker=broker_id, why=str(error))
                break
            except MoldauError as error:
                log.warning(
                    "a replica does not say where its log ends",
                    broker=broker_id,
                    partition=f"{name.topic}-{name.partition}",
                    why=str(error),
                )

    # Tasks

    def _start_task(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """One at a time of each name; if it is wanted again meanwhile, once more after it."""
        if self._has_stopped:
            return
        if name in self._tasks:
            self._rerun_requested[name] = None
            return

        async def run() -> None:
            try:
                is_wanted = True
                while is_wanted:
                    self._rerun_requested.pop(name, None)
                    try:
                        await work()
                    except (NotControllerError, RequestTimedOutError):
                        # The next controller looks after the cluster now.
                        return
                    except Exception:
                        log.exception("the controller's upkeep has failed, and is tried again", at=name)
                        await asyncio.sleep(SUBMIT_RETRY_S)
                    else:
                        is_wanted = name in self._rerun_requested
            finally:
                self._rerun_requested.pop(name, None)
                self._tasks.pop(name, None)

        self._tasks[name] = asyncio.get_running_loop().create_task(run())


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _update_features(state: ControllerState) -> CoordinatorResult[Record, None]:
    return update_features(state, {name: high for name, (_, high) in SUPPORTED_FEATURES.items()})


def has_leaderless_partitions(state: ControllerState) -> bool:
    return state.index.leader_count(NO_LEADER) > 0
