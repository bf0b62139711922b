"""Background tasks of the active controller. They fence expired and dead brokers, finish incomplete changes, run
unclean elections, restore preferred leaders, and move leaders to the controller (leader.follows.controller).

The tasks run while the controller is active. They submit each change as a decision (records plus a response), as
requests do. A decision fails if this node no longer leads the metadata log.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from moldau.concurrency.notifier import Notifier
from moldau.controller.cluster_control import fence_broker, reconcile_broker
from moldau.controller.elections import (
    balance_partition_leaders,
    can_controller_lead_more,
    elect_unclean_leaders,
    move_leaders_to_controller,
    reconcile_elrs,
    unclean_election_candidates,
)
from moldau.controller.feature_control import set_highest_levels
from moldau.controller.features import METADATA_VERSION
from moldau.controller.heartbeat_manager import BrokerHeartbeatManager, remaining_session_ms
from moldau.controller.log_end_query import LogEndQuery
from moldau.controller.offline_replicas import remove_offline_replicas
from moldau.controller.partition_index import PartitionName
from moldau.controller.requests import BrokerHeartbeat
from moldau.controller.state import ControllerState
from moldau.coordinator import CoordinatorResult
from moldau.coordinator.runtime import CoordinatorRuntime
from moldau.errors import MoldauError, NotControllerError, PeerUnreachableError, RequestTimedOutError
from moldau.metadata.image import NO_LEADER, MetadataImage
from moldau.metadata.records import Record
from moldau.metrics.component_metrics import ControllerMetrics
from moldau.observe.logging import get_logger
from moldau.peers.probe import ProbeResult
from moldau.platform.clock import Clock
from moldau.raft.messages import EpochEndOffset
from moldau.settings.effective import EffectiveSettings

log = get_logger("controller")

ProbeBroker = Callable[[int], Awaitable[ProbeResult]]
FetchLogEnd = Callable[[int, str, int], Awaitable[EpochEndOffset]]

PROBE_DELAYS_S = (0.0, 0.05, 0.25, 1.0)
"""The delay before each probe of a broker whose connection closed. Several probes are needed, because a dying process
closes its sockets one by one and may still accept connections for a moment."""
PROBE_CONFIRM_DELAY_S = 0.05
PROBE_WAIT_MS_MAX = 150
"""How long the creation of partitions waits until suspected brokers are probed."""
STALL_THRESHOLD_MS = 200
"""If a timer fires more than this late, the event loop was stalled."""
LOG_END_ATTEMPTS_MAX = 3
"""How many times a live replica is queried for its log end. After that, an automatic unclean election ignores the
replica."""
LOG_END_RETRY_S = 1.0
SUBMIT_RETRY_S = 0.5
"""The delay before a retry if the metadata log could not append a decision, for example because the disk is full."""


class BackgroundTasks:
    def __init__(
        self,
        node_id: int,
        runtime: CoordinatorRuntime[ControllerState, Record],
        settings: EffectiveSettings,
        clock: Clock,
        state: ControllerState,
        *,
        previous_controller: int,
        leader_silence_ms: int,
        probe: ProbeBroker | None,
        fetch_log_end: FetchLogEnd | None,
        metrics: ControllerMetrics,
    ) -> None:
        """Starts the tasks on a runtime that was just loaded with `state`.

        `leader_silence_ms` is the minimum time for which the voters that elected this controller had received nothing
        from the previous controller.
        """
        image = state.image
        self.state = state
        self._node_id = node_id
        self._runtime = runtime
        self._settings = settings
        self._clock = clock
        self._probe = probe
        self._fetch_log_end = fetch_log_end
        self._metrics = metrics
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rerun_requested: dict[str, None] = {}
        self._suspected_brokers: dict[int, None] = {}
        """Brokers that are being probed and have not accepted a connection yet."""
        self._suspicions_cleared = Notifier()
        self._offline_reports: dict[int, BrokerHeartbeat] = {}
        """The latest heartbeat of each broker that reported offline replicas."""
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
        # Queue the feature levels ahead of all requests, so that registrations are checked against the levels.
        self._feature_update = None if METADATA_VERSION in image.features else runtime.schedule(set_highest_levels)
        if probe is not None:
            self._suspected_brokers = dict.fromkeys(self._brokers_to_probe(image))
        self._start_task("take over", partial(self._initialize_term, image))
        self.reschedule_timer()

    def stop(self) -> None:
        """Cancels all tasks, because the controller is no longer active."""
        self._has_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in list(self._tasks.values()):
            task.cancel()
        self._suspicions_cleared.notify_all()

    @property
    def has_stopped(self) -> bool:
        """Whether all tasks have ended."""
        return self._has_stopped and not self._tasks

    async def wait_stopped(self) -> None:
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # Triggers

    def on_connection_closed(self, broker_id: int, broker_epoch: int) -> None:
        """Probes a broker whose heartbeat connection closed, because the broker's process may have died."""
        name = f"probe {broker_id} of epoch {broker_epoch}"
        if self._probe is not None:
            self._suspected_brokers[broker_id] = None
        self._start_task(name, partial(self._check_broker, broker_id, broker_epoch))

    def start_reconciliation(self, broker_id: int) -> None:
        """Starts a task for the remaining partition changes of a broker if not all fitted into one batch of records."""
        self._start_task(f"reconcile {broker_id}", partial(self._reconcile_broker, broker_id))

    def on_offline_replicas(self, beat: BrokerHeartbeat) -> None:
        """Handles a heartbeat that reports offline replicas, and the first later heartbeat that reports none."""
        self._offline_reports[beat.broker_id] = beat
        name = f"offline replicas of {beat.broker_id}"
        self._start_task(name, partial(self._remove_offline_replicas, beat.broker_id))

    def on_image_change(self) -> None:
        if self.state.index.leader_count(NO_LEADER) > 0:
            self._start_unclean_elections()
        self.start_moves_to_controller()

    async def wait_until_probed(self) -> None:
        """Waits until no broker is suspected to be dead, but not longer than PROBE_WAIT_MS_MAX. New partitions should
        get no replicas on a broker whose process has just died."""
        if self._suspected_brokers:
            await self._suspicions_cleared.wait(PROBE_WAIT_MS_MAX)

    # Timer

    def reschedule_timer(self) -> None:
        """Sets the timer to the next deadline. Keeps a timer that fires earlier, because `_on_timer` sets the next."""
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
            log.warning("the controller's event loop was stalled", late_ms=late_ms)
            # Extend all sessions, because heartbeats that arrived during the stall are still unread.
            self.heartbeat_manager.extend_sessions(late_ms)
        for session in self.heartbeat_manager.take_expired(now_ms):
            self._metrics.timed_out_heartbeats += 1
            name = f"fence {session.broker_id} of epoch {session.broker_epoch}"
            self._start_task(name, partial(self._fence_expired, session.broker_id, session.broker_epoch))
        if now_ms >= self._next_balance_ms:
            self._next_balance_ms = now_ms + self._settings.static.leader_imbalance_check_interval_seconds * 1000
            if self._settings.broker.auto_leader_rebalance_enable:
                self._start_task("balance", self._balance_leaders)
        self.reschedule_timer()

    # Brokers

    async def _initialize_term(self, image: MetadataImage) -> None:
        """Probes all brokers and completes changes that the previous controller made only in part."""
        if self._feature_update is not None:
            try:
                await self._feature_update
            except (NotControllerError, RequestTimedOutError):
                raise
            except MoldauError as error:
                log.error("the controller could not append its decision, will retry", reason=str(error))
                await self._submit_with_retry(set_highest_levels)
        for broker_id in self._brokers_to_probe(image):
            self.on_connection_closed(broker_id, image.brokers[broker_id].epoch)
        for broker_id in sorted(image.brokers):
            await self._reconcile_broker(broker_id)
        while not await self._submit_with_retry(lambda state: reconcile_elrs(state)):
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
            self._suspicions_cleared.notify_all()

    async def _fence_if_dead(self, broker_id: int, broker_epoch: int) -> None:
        session = self.heartbeat_manager.session_of(broker_id, broker_epoch)
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
                    "its process is not running",
                    cancel_if=lambda: session.heartbeat_count != seen_count,
                )
                if session.heartbeat_count == seen_count:
                    # Expire the session, so that the next incarnation of the broker can register at once.
                    self.heartbeat_manager.expire_session(broker_id, broker_epoch, self._clock.monotonic_ms())
                return
            self._clear_suspicion(broker_id)

    async def _is_still_refused(self, broker_id: int) -> bool:
        """Returns whether another probe is refused. One refusal may come from a proxy or a listener that just opens."""
        await asyncio.sleep(PROBE_CONFIRM_DELAY_S)
        return await self._is_refused(broker_id)

    async def _is_refused(self, broker_id: int) -> bool:
        try:
            return self._probe is not None and await self._probe(broker_id) is ProbeResult.REFUSED
        except MoldauError as error:
            log.warning("could not probe the broker", broker=broker_id, reason=str(error))
            return False

    async def _fence_expired(self, broker_id: int, broker_epoch: int) -> None:
        await self._fence_broker(
            broker_id,
            broker_epoch,
            "its session expired",
            cancel_if=lambda: self.heartbeat_manager.has_valid_session(
                broker_id, broker_epoch, self._clock.monotonic_ms()
            ),
        )

    async def _fence_broker(
        self, broker_id: int, broker_epoch: int, reason: str, *, cancel_if: Callable[[], bool]
    ) -> None:
        """Fences the broker unless `cancel_if` returns True. `cancel_if` is called when the decision is made, because a
        heartbeat may have arrived meanwhile."""

        def decide(state: ControllerState) -> CoordinatorResult[Record, tuple[bool, bool]]:
            if cancel_if():
                return CoordinatorResult([], (True, False))
            decision = fence_broker(state, broker_id, broker_epoch)
            return CoordinatorResult(decision.records, (decision.response, bool(decision.records)))

        is_complete, is_fenced = await self._submit_with_retry(decide)
        if is_fenced:
            log.warning("broker is fenced", broker=broker_id, epoch=broker_epoch, reason=reason)
        if not is_complete:
            await self._reconcile_broker(broker_id)

    async def _reconcile_broker(self, broker_id: int) -> None:
        while not await self._submit_with_retry(lambda state: reconcile_broker(state, broker_id)):
            pass

    async def _remove_offline_replicas(self, broker_id: int) -> None:
        while await self._submit_with_retry(
            lambda state: remove_offline_replicas(state, self._offline_reports[broker_id])
        ):
            pass
        # A replica that is online again may be the only candidate in an unclean election, or a replica of this
        # controller. Start the elections here, because no metadata record reports that a replica is online again.
        self._start_unclean_elections()
        self.start_moves_to_controller()

    async def _submit_with_retry(self, decide: Callable[[ControllerState], CoordinatorResult[Record, Any]]) -> Any:
        """Submits a decision until it is appended. Raises NotControllerError or RequestTimedOutError if the controller
        is no longer active."""
        while True:
            try:
                return await self._runtime.submit(decide)
            except (NotControllerError, RequestTimedOutError):
                raise
            except MoldauError as error:
                log.error("the controller could not append its decision, will retry", reason=str(error))
                await asyncio.sleep(SUBMIT_RETRY_S)

    # Leaders

    async def _balance_leaders(self) -> None:
        while await self._submit_with_retry(lambda state: balance_partition_leaders(state)):
            pass

    def start_moves_to_controller(self) -> None:
        """Starts a task that moves leaders to this node (leader.follows.controller), if it can lead more partitions.

        A controller that has just started waits for a heartbeat of its own broker. Until that broker registers, the
        metadata shows its previous incarnation, which must not replace a live leader.
        """
        if can_controller_lead_more(self.state):
            broker = self.state.image.brokers[self._node_id]
            session = self.heartbeat_manager.session_of(self._node_id, broker.epoch)
            if session is not None and session.heartbeat_count > 0:
                self._start_task("move to controller", self._move_leaders_to_controller)

    async def _move_leaders_to_controller(self) -> None:
        while await self._submit_with_retry(lambda state: move_leaders_to_controller(state)):
            pass

    def _start_unclean_elections(self) -> None:
        if self._fetch_log_end is not None:
            self._start_task("elect", self._run_unclean_elections)

    async def _run_unclean_elections(self) -> None:
        """Runs unclean elections until no leaderless partition has a live candidate."""
        attempts = 0
        while not (query := await self._submit_with_retry(self._query_candidates)).is_empty:
            await self._query_once(query)
            attempts += 1
            if query.is_complete or attempts >= LOG_END_ATTEMPTS_MAX:
                attempts = 0
                await self._submit_with_retry(lambda state: elect_unclean_leaders(state, query.log_ends(state)))
            await asyncio.sleep(LOG_END_RETRY_S)

    def _query_candidates(self, state: ControllerState) -> CoordinatorResult[Record, LogEndQuery]:
        return CoordinatorResult([], LogEndQuery(state, unclean_election_candidates(state)))

    async def query_log_ends(self, query: LogEndQuery) -> None:
        """Queries log ends up to LOG_END_ATTEMPTS_MAX times, until all replicas have responded."""
        for _ in range(LOG_END_ATTEMPTS_MAX - 1):
            await self._query_once(query)
            if query.is_complete:
                return
            await asyncio.sleep(LOG_END_RETRY_S)
        await self._query_once(query)

    async def _query_once(self, query: LogEndQuery) -> None:
        await asyncio.gather(*(self._query_broker(query, *each) for each in query.pending().items()))

    async def _query_broker(self, query: LogEndQuery, broker_id: int, names: Sequence[PartitionName]) -> None:
        if self._fetch_log_end is None:
            return
        for name in names:
            try:
                query.record_response(broker_id, name, await self._fetch_log_end(broker_id, *name))
            except (PeerUnreachableError, RequestTimedOutError) as error:
                log.warning("the broker did not return its log ends", broker=broker_id, reason=str(error))
                break
            except MoldauError as error:
                log.warning(
                    "the replica did not return its log end",
                    broker=broker_id,
                    partition=f"{name.topic}-{name.partition}",
                    reason=str(error),
                )

    # Tasks

    def _start_task(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts a task. If a task with this name is already running, that task repeats its work once."""
        if self._has_stopped:
            return
        if name in self._tasks:
            self._rerun_requested[name] = None
            return

        async def run() -> None:
            try:
                needs_run = True
                while needs_run:
                    self._rerun_requested.pop(name, None)
                    try:
                        await work()
                    except (NotControllerError, RequestTimedOutError):
                        # This controller is no longer active, and the next controller takes over.
                        return
                    except Exception:
                        log.exception("a background task of the controller failed, will retry", task=name)
                        await asyncio.sleep(SUBMIT_RETRY_S)
                    else:
                        needs_run = name in self._rerun_requested
            finally:
                self._rerun_requested.pop(name, None)
                self._tasks.pop(name, None)

        self._tasks[name] = asyncio.get_running_loop().create_task(run())
