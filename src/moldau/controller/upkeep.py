"""What the active controller does unasked: it fences who has fallen silent or is gone, finishes what was left half
done, elects where nobody in sync is left, and gives leadership back to those who should have it.

It lives from the moment the controller becomes active until it no longer is. Everything it changes is a decision like
any other, so nothing it does can reach a log that this node does not lead any more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from moldau.controller.balance import balance_leaders
from moldau.controller.brokers import (
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    fence_broker,
    finish_broker,
    update_features,
)
from moldau.controller.elections import elect_uncleanly, finish_eligible, unclean_candidates
from moldau.controller.failed_replicas import take_out_failed
from moldau.controller.index import PartitionName
from moldau.controller.inquiry import Inquiry
from moldau.controller.liveness import Sessions, rest_of_session
from moldau.controller.requests import Heartbeat
from moldau.controller.state import ControllerState
from moldau.coordinator import Decision
from moldau.coordinator.runtime import DecisionRuntime
from moldau.errors import MoldauError, NotControllerError, PeerUnreachableError, RequestTimedOutError
from moldau.metadata.image import NO_LEADER, ClusterImage
from moldau.metadata.records import Record
from moldau.observe.logging import get_logger
from moldau.peers.probing import Probe
from moldau.platform.clock import Clock
from moldau.raft.messages import LogEnd
from moldau.settings.effective import EffectiveSettings

log = get_logger("controller")

ProbeBroker = Callable[[int], Awaitable[Probe]]
AskLogEnd = Callable[[int, str, int], Awaitable[LogEnd]]

PROBES_AFTER_S = (0.0, 0.05, 0.25, 1.0)
"""When a broker whose connection closed is looked for. A process that dies closes its connections one by one, and may
seem to be there for a moment still."""
PROBE_AGAIN_S = 0.05
SUSPECT_S = 0.15
"""So long it is waited for what comes of looking for a broker, before new replicas are given to it."""
LATE_MS = 200
"""A timer later than this says that the node itself was held up."""
ASKS_MAX = 3
"""How often a live replica that does not answer is asked for the end of its log, before others are elected without."""
ASK_AGAIN_S = 1.0
DECIDE_AGAIN_S = 0.5
"""When a decision is made again that the metadata log could not take, because its disk was full for example."""


class Upkeep:
    def __init__(
        self,
        node_id: int,
        runtime: DecisionRuntime[ControllerState, Record],
        settings: EffectiveSettings,
        clock: Clock,
        image: ClusterImage,
        *,
        former_controller: int,
        silent_ms: int,
        probe: ProbeBroker | None,
        ask_log_end: AskLogEnd | None,
    ) -> None:
        """Begins, on a runtime that has just been loaded with `image`. `silent_ms`: for how long those who elected
        this controller had heard nothing of the one before."""
        self._node_id = node_id
        self._runtime = runtime
        self._settings = settings
        self._clock = clock
        self._probe = probe
        self._ask_log_end = ask_log_end
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted_again: dict[str, None] = {}
        self._suspects: dict[int, None] = {}
        """Brokers that are being looked for, and of which nothing was found yet, or a refusal."""
        self._awaiting: list[asyncio.Future[None]] = []
        self._failed: dict[int, Heartbeat] = {}
        """The newest heartbeat of each broker that told of failed logs."""
        self._has_ended = False
        static = settings.static
        self.sessions = Sessions(static.broker_session_timeout_ms)
        now_ms = clock.monotonic_ms()
        self.sessions.take_over(
            now_ms,
            image.brokers,
            image.offset,
            former_controller=None if former_controller == node_id else former_controller,
            former_session_ms=rest_of_session(static.broker_session_timeout_ms, silent_ms),
        )
        self._balance_ms = now_ms + static.leader_imbalance_check_interval_seconds * 1000
        # Submitted before anything that comes from outside: whoever registers does so on these levels.
        self._features = None if METADATA_VERSION in image.features else runtime.start(_update_features)
        if probe is not None:
            self._suspects = dict.fromkeys(self._to_be_looked_for(image))
        self._start("take over", partial(self._take_over, image))
        self._arm()

    def end(self) -> None:
        """The controller is no longer active."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in list(self._tasks.values()):
            task.cancel()
        for each in self._awaiting:
            _tell(each)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is under way any more."""
        return self._has_ended and not self._tasks

    async def wait_ended(self) -> None:
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # What it is told

    def sessions_changed(self) -> None:
        """A session has begun: its end may be the next thing to wait for."""
        self._arm()

    def connection_closed(self, broker_id: int, broker_epoch: int) -> None:
        """A connection on which this broker's heartbeats came has closed: perhaps its process is gone."""
        name = f"probe {broker_id} of epoch {broker_epoch}"
        if self._probe is not None:
            self._suspects[broker_id] = None
        self._start(name, partial(self._look_for, broker_id, broker_epoch))

    def finish(self, broker_id: int) -> None:
        """A decision on this broker was too large, and the rest is to be done."""
        self._start(f"finish {broker_id}", partial(self._finish, broker_id))

    def replicas_failed(self, beat: Heartbeat) -> None:
        """A broker says which of its logs have failed, or that none has any more."""
        self._failed[beat.broker_id] = beat
        name = f"failed logs of {beat.broker_id}"
        self._start(name, partial(self._take_out_failed, beat.broker_id))

    def image_changed(self, has_leaderless: bool) -> None:
        if has_leaderless:
            self._elect()

    async def until_found(self) -> None:
        """Returns when nobody is suspected to be gone, or after a moment: a new topic should not get replicas on a
        broker whose process has just ended, and whoever creates it wait for them."""
        if not self._suspects:
            return
        loop = asyncio.get_running_loop()
        found: asyncio.Future[None] = loop.create_future()
        self._awaiting.append(found)
        timer = loop.call_later(SUSPECT_S, _tell, found)
        try:
            await found
        finally:
            timer.cancel()

    # Time

    def _arm(self) -> None:
        """One timer, on whatever comes next. One that turns out to be early is set again when it goes off."""
        if self._has_ended:
            return
        due = min(self._balance_ms, self.sessions.next_deadline_ms or self._balance_ms)
        if self._timer is not None:
            if self._due_ms <= due:
                return
            self._timer.cancel()
        self._due_ms = due
        delay_ms = max(due - self._clock.monotonic_ms(), 1)
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - self._due_ms
        if late_ms > LATE_MS:
            # Heartbeats that came meanwhile have not been read yet: nobody is fenced for that.
            log.warning("the controller was held up", late_ms=late_ms)
            self.sessions.postpone(late_ms)
        for session in self.sessions.expired(now_ms):
            name = f"fence {session.broker_id} of epoch {session.broker_epoch}"
            self._start(name, partial(self._fence_silent, session.broker_id, session.broker_epoch))
        if now_ms >= self._balance_ms:
            self._balance_ms = now_ms + self._settings.static.leader_imbalance_check_interval_seconds * 1000
            if self._settings.broker.auto_leader_rebalance_enable:
                self._start("balance", self._balance)
        self._arm()

    # Who is alive

    async def _take_over(self, image: ClusterImage) -> None:
        """Looks after every broker at once, and finishes what the controller before had begun: it may have ended
        between two decisions that belong together."""
        if self._features is not None:
            try:
                await self._features
            except (NotControllerError, RequestTimedOutError):
                raise
            except MoldauError as error:
                log.error("the controller cannot write its decision", why=str(error))
                await self._decide(_update_features)
        for broker_id in self._to_be_looked_for(image):
            self.connection_closed(broker_id, image.brokers[broker_id].epoch)
        for broker_id in sorted(image.brokers):
            await self._finish(broker_id)
        while not await self._decide(lambda state: finish_eligible(state, self._settings)):
            pass

    def _to_be_looked_for(self, image: ClusterImage) -> list[int]:
        return [
            broker_id
            for broker_id in sorted(image.brokers)
            if broker_id != self._node_id and not image.brokers[broker_id].fenced
        ]

    async def _look_for(self, broker_id: int, broker_epoch: int) -> None:
        try:
            await self._probe_broker(broker_id, broker_epoch)
        finally:
            self._found(broker_id)

    def _found(self, broker_id: int) -> None:
        self._suspects.pop(broker_id, None)
        if not self._suspects:
            awaiting, self._awaiting = self._awaiting, []
            for each in awaiting:
                _tell(each)

    async def _probe_broker(self, broker_id: int, broker_epoch: int) -> None:
        session = self.sessions.of(broker_id, broker_epoch)
        if session is None:
            return
        heard = session.heard
        for after_s in PROBES_AFTER_S:
            if after_s:
                await asyncio.sleep(after_s)
            if session.heard != heard:
                return
            if await self._is_gone(broker_id) and await self._is_still_gone(broker_id):
                await self._fence(
                    broker_id, broker_epoch, "its process is gone", unless=lambda: session.heard != heard
                )
                if session.heard == heard:
                    # Its next life need not wait for the end of this one.
                    self.sessions.cut_short(broker_id, broker_epoch, self._clock.monotonic_ms())
                return
            self._found(broker_id)

    async def _is_still_gone(self, broker_id: int) -> bool:
        """One refusal may come from a listener that is just being opened, or from something in between."""
        await asyncio.sleep(PROBE_AGAIN_S)
        return await self._is_gone(broker_id)

    async def _is_gone(self, broker_id: int) -> bool:
        try:
            return self._probe is not None and await self._probe(broker_id) is Probe.GONE
        except MoldauError as error:
            log.warning("a broker cannot be looked for", broker=broker_id, why=str(error))
            return False

    async def _fence_silent(self, broker_id: int, broker_epoch: int) -> None:
        await self._fence(
            broker_id,
            broker_epoch,
            "nothing was heard of it",
            unless=lambda: self.sessions.is_alive(broker_id, broker_epoch, self._clock.monotonic_ms()),
        )

    async def _fence(
        self, broker_id: int, broker_epoch: int, why: str, *, unless: Callable[[], bool]
    ) -> None:
        """`unless` is looked at when the decision is made: a heartbeat may have come since."""
        outcome = "left alone"

        def decide(state: ControllerState) -> Decision[Record, bool]:
            nonlocal outcome
            if unless():
                return Decision([], True)
            decision = fence_broker(state, self._settings, broker_id, broker_epoch)
            if decision.records:
                outcome = "fenced"
            return decision

        is_finished = await self._decide(decide)
        if outcome == "fenced":
            log.warning("broker is fenced", broker=broker_id, epoch=broker_epoch, why=why)
        if not is_finished:
            await self._finish(broker_id)

    async def _finish(self, broker_id: int) -> None:
        while not await self._decide(lambda state: finish_broker(state, self._settings, broker_id)):
            pass

    async def _take_out_failed(self, broker_id: int) -> None:
        while await self._decide(
            lambda state: take_out_failed(state, self._settings, self._failed[broker_id])
        ):
            pass
        # A log that is open again may be the only one to elect, and no record tells of it.
        self._elect()

    async def _decide(self, decide: Callable[[ControllerState], Decision[Record, Any]]) -> Any:
        """Until the metadata log takes it; raises NotControllerError when this controller's time is over."""
        while True:
            try:
                return await self._runtime.submit(decide)
            except (NotControllerError, RequestTimedOutError):
                raise
            except MoldauError as error:
                log.error("the controller cannot write its decision", why=str(error))
                await asyncio.sleep(DECIDE_AGAIN_S)

    # Who leads

    async def _balance(self) -> None:
        while await self._decide(lambda state: balance_leaders(state, self._settings)):
            pass

    def _elect(self) -> None:
        if self._ask_log_end is not None:
            self._start("elect", self._elect_uncleanly)

    async def _elect_uncleanly(self) -> None:
        """Goes on until no live replica is left that could help."""
        asked = 0
        while not (inquiry := await self._decide(self._unclean_inquiry)).is_empty:
            await self._ask(inquiry)
            asked += 1
            if inquiry.is_answered or asked >= ASKS_MAX:
                asked = 0
                await self._decide(
                    lambda state: elect_uncleanly(state, self._settings, inquiry.log_ends(state))
                )
            await asyncio.sleep(ASK_AGAIN_S)

    def _unclean_inquiry(self, state: ControllerState) -> Decision[Record, Inquiry]:
        return Decision([], Inquiry(state, unclean_candidates(state, self._settings)))

    async def ask_patiently(self, inquiry: Inquiry) -> None:
        """Returns when all have answered, or were asked often enough."""
        for _ in range(ASKS_MAX - 1):
            await self._ask(inquiry)
            if inquiry.is_answered:
                return
            await asyncio.sleep(ASK_AGAIN_S)
        await self._ask(inquiry)

    async def _ask(self, inquiry: Inquiry) -> None:
        await asyncio.gather(*(self._ask_broker(inquiry, *each) for each in inquiry.to_ask().items()))

    async def _ask_broker(self, inquiry: Inquiry, broker_id: int, names: Sequence[PartitionName]) -> None:
        if self._ask_log_end is None:
            return
        for name in names:
            try:
                inquiry.take(broker_id, name, await self._ask_log_end(broker_id, *name))
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

    def _start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """One at a time of each name; if it is wanted again meanwhile, once more after it."""
        if self._has_ended:
            return
        if name in self._tasks:
            self._wanted_again[name] = None
            return

        async def run() -> None:
            try:
                is_wanted = True
                while is_wanted:
                    self._wanted_again.pop(name, None)
                    try:
                        await work()
                    except (NotControllerError, RequestTimedOutError):
                        # The next controller looks after the cluster now.
                        return
                    except Exception:
                        log.exception("the controller's upkeep has failed, and is tried again", at=name)
                        await asyncio.sleep(DECIDE_AGAIN_S)
                    else:
                        is_wanted = name in self._wanted_again
            finally:
                self._wanted_again.pop(name, None)
                self._tasks.pop(name, None)

        self._tasks[name] = asyncio.get_running_loop().create_task(run())


def _tell(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _update_features(state: ControllerState) -> Decision[Record, None]:
    return update_features(state, {name: high for name, (_, high) in SUPPORTED_FEATURES.items()})


def has_leaderless(state: ControllerState) -> bool:
    return state.index.count_led_by(NO_LEADER) > 0
