"""Keeps this broker in the cluster: carries what `state.py` wants to say to the controller, wherever that is."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

from moldau.broker_lifecycle.lease import Lease
from moldau.broker_lifecycle.state import (
    NO_EPOCH,
    BecameActive,
    ControllerChanged,
    Effect,
    EndLease,
    Event,
    HeartbeatAnswered,
    HeartbeatFailed,
    MayStop,
    MembershipState,
    Phase,
    ProlongLease,
    Refuse,
    Register,
    Registered,
    RegistrationFailed,
    Reported,
    Send,
    ShutdownWanted,
    Started,
    Tick,
    WasFenced,
)
from moldau.controller.requests import Heartbeat, HeartbeatReply, NotReady, Registration
from moldau.errors import MoldauError, NotControllerError, PeerUnreachableError, RequestTimedOutError
from moldau.metadata.image import Endpoint
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.settings.broker import BrokerSettings

log = get_logger("membership")


class Gateway(Protocol):
    """The active controller, wherever it is. Each call is tried once, and finds the controller of that moment."""

    async def register_broker(self, broker: Registration) -> int: ...

    async def heartbeat(self, heartbeat: Heartbeat, timeout_ms: int | None = None) -> HeartbeatReply: ...


class Membership:
    def __init__(
        self,
        node_id: int,
        incarnation_id: UUID,
        gateway: Gateway,
        settings: BrokerSettings,
        clock: Clock,
        *,
        cluster_id: str,
        endpoints: Sequence[Endpoint],
        previous_epoch: int = -1,
        on_lease_ended: Callable[[], None] | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`incarnation_id` is new with every start of the process. `previous_epoch` is the broker epoch that the logs
        were closed under, -1 where they were not closed. `on_lease_ended` hears when the lease runs out, `on_fatal`
        of a refusal that comes after `start`."""
        self._registration = Registration(
            broker_id=node_id,
            incarnation_id=incarnation_id,
            endpoints=tuple(endpoints),
            rack=settings.rack or None,
            cluster_id=cluster_id,
            previous_epoch=previous_epoch,
        )
        self._gateway = gateway
        self._clock = clock
        self._on_fatal = on_fatal
        self._on_lease_ended = on_lease_ended
        self.lease = Lease(clock)
        self._lease_timer: asyncio.TimerHandle | None = None
        self._state = MembershipState(
            node_id,
            heartbeat_interval_ms=settings.broker_heartbeat_interval_ms,
            session_ms=settings.broker_session_timeout_ms,
        )
        self._requests: list[asyncio.Task[None]] = []
        """The last is under way; those before it have been given up and may still be ending."""
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._refusal: MoldauError | None = None
        self._last_failure = ""
        """What the log has been told of heartbeats that failed, since the last one that did not."""
        self._has_started = False
        self._is_closed = False

    @property
    def broker_epoch(self) -> int:
        """-1 before the first registration."""
        return self._state.broker_epoch

    @property
    def is_active(self) -> bool:
        """Registered and not fenced, as far as the controller has said."""
        return self._state.is_active and not self._is_closed

    @property
    def phase(self) -> Phase:
        return self._state.phase

    async def start(self, former_incarnations: Sequence[UUID] = ()) -> None:
        """Registers, however long it takes until there is a controller. Raises what the cluster has against this node,
        if that will not pass. `former_incarnations` are the lives that this node's disk has seen last."""
        self._registration = replace(self._registration, former_incarnations=tuple(former_incarnations))
        self._take(Started())
        await self._until(lambda: self.broker_epoch != NO_EPOCH)
        self._has_started = True

    async def wait_active(self) -> None:
        """Returns when the controller counts on this broker."""
        await self._until(lambda: self.is_active)

    def report(self, metadata_offset: int, not_ready: Sequence[NotReady] = ()) -> None:
        """All of this node has taken the metadata up to `metadata_offset`; `not_ready` are the replicas that could not
        be opened. The controller is told at once: somebody may be waiting for a new topic."""
        self._take(Reported(metadata_offset, tuple(not_ready)))

    def controller_changed(self) -> None:
        """Another node has become the controller, as the quorum says: it is told at once that this broker is alive,
        whatever became of what the one before was told last."""
        if not self._is_closed:
            self._give_up()
            self._take(ControllerChanged())

    async def shut_down(self) -> None:
        """Returns when others lead what this broker led, or when nobody can be asked to. From then on there is no
        lease: nothing is acknowledged any more."""
        self._take(ShutdownWanted())
        while not self._has_ended:
            await self._news()

    async def close(self) -> None:
        """Says nothing any more."""
        self._is_closed = True
        self.lease.end()
        self._tell_waiting()
        if self._timer is not None:
            self._timer.cancel()
        self._give_up()
        await asyncio.gather(*self._requests, return_exceptions=True)

    @property
    def _has_ended(self) -> bool:
        return self._is_closed or self._state.phase is Phase.STOPPED

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self._refusal is not None:
                raise self._refusal
            if self._has_ended:
                raise NotControllerError("this node is shutting down")
            await self._news()

    async def _news(self) -> None:
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(told)
        await told

    def _tell_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for told in waiting:
            if not told.done():
                told.set_result(None)

    # Events and effects

    def _take(self, event: Event) -> None:
        if self._is_closed:
            return
        for effect in self._state.step(self._clock.monotonic_ms(), event):
            self._perform(effect)
        self._arm()
        self._tell_waiting()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Register():
                self._begin(self._register(effect))
            case Send():
                self._begin(self._send(effect))
            case ProlongLease():
                self.lease.prolong(effect.ends_ms)
                if self._lease_timer is None:
                    self._watch_lease()
            case EndLease():
                self.lease.end()
                self._watch_lease()
            case BecameActive():
                log.info("broker is active", epoch=self._state.broker_epoch)
            case WasFenced():
                log.warning("broker is fenced", epoch=self._state.broker_epoch)
            case MayStop():
                if not effect.was_handed_over:
                    log.warning("leadership is not handed over: no controller answers")
            case Refuse():
                self._refusal = effect.error
                if self._has_started and self._on_fatal is not None:
                    self._on_fatal(effect.error)

    def _watch_lease(self) -> None:
        """Looks again when the lease ends, as far as is known now."""
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        if self._is_closed:
            return
        if self.lease.is_valid():
            left_ms = self.lease.ends_ms - self._clock.monotonic_ms()
            self._lease_timer = asyncio.get_running_loop().call_later(
                max(left_ms, 1) / 1000, self._watch_lease
            )
        elif self._on_lease_ended is not None:
            self._on_lease_ended()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._state.next_deadline_ms
        if due_ms is not None and not self._is_closed:
            delay_ms = max(due_ms - self._clock.monotonic_ms(), 1)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._take(Tick())

    # Requests

    def _begin(self, request: Coroutine[Any, Any, None]) -> None:
        self._requests = [each for each in self._requests if not each.done()]
        self._requests.append(asyncio.get_running_loop().create_task(request))

    def _give_up(self) -> None:
        for request in self._requests:
            request.cancel()

    async def _register(self, effect: Register) -> None:
        event: Event
        try:
            async with asyncio.timeout(effect.timeout_ms / 1000):
                epoch = await self._gateway.register_broker(self._registration)
        except TimeoutError:
            event = RegistrationFailed(RequestTimedOutError("the controller does not answer"))
        except MoldauError as error:
            log.info("broker is not registered yet", why=str(error) or type(error).__name__)
            event = RegistrationFailed(error)
        except Exception:
            log.exception("registering has failed")
            event = RegistrationFailed(MoldauError("registering has failed"))
        else:
            log.info("broker is registered", epoch=epoch)
            event = Registered(epoch)
        self._take(event)

    async def _send(self, effect: Send) -> None:
        beat = Heartbeat(
            broker_id=self._registration.broker_id,
            broker_epoch=effect.broker_epoch,
            metadata_offset=effect.metadata_offset,
            wants_shutdown=effect.wants_shutdown,
            not_ready=effect.not_ready,
        )
        sent_ms = self._clock.monotonic_ms()
        event: Event
        try:
            async with asyncio.timeout(effect.timeout_ms / 1000):
                reply = await self._gateway.heartbeat(beat, effect.timeout_ms)
        except TimeoutError:
            event = HeartbeatFailed(RequestTimedOutError("the controller does not answer"))
        except MoldauError as error:
            self._note_failure(error)
            event = HeartbeatFailed(error)
        except Exception:
            log.exception("the heartbeat has failed")
            event = HeartbeatFailed(MoldauError("the heartbeat has failed"))
        else:
            self._last_failure = ""
            event = HeartbeatAnswered(sent_ms, reply)
        self._take(event)

    def _note_failure(self, error: MoldauError) -> None:
        """That controllers come and go is nothing to tell; what they have against a heartbeat is told once."""
        why = str(error) or type(error).__name__
        if isinstance(error, NotControllerError | PeerUnreachableError | RequestTimedOutError):
            log.debug("heartbeat failed", why=why)
        elif why != self._last_failure:
            log.warning("the controller does not take this broker's heartbeats", why=why)
            self._last_failure = why
