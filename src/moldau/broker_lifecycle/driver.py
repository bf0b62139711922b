"""Keeps this broker in the cluster: carries what `state.py` wants to say to the controller, wherever that is."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

from moldau.broker_lifecycle.lease import BrokerLease
from moldau.broker_lifecycle.state import (
    NO_BROKER_EPOCH,
    BrokerLifecycleState,
    BrokerState,
    ControllerChanged,
    Effect,
    EndLease,
    Event,
    ExtendLease,
    Fenced,
    HeartbeatFailed,
    HeartbeatSucceeded,
    MetadataPublished,
    RegistrationFailed,
    RegistrationSucceeded,
    RejectRegistration,
    SendBrokerHeartbeat,
    SendRegistration,
    ShutdownCompleted,
    ShutdownRequested,
    StartRequested,
    TimerFired,
    Unfenced,
)
from moldau.controller.requests import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    BrokerRegistrationRequest,
    OfflineReplica,
)
from moldau.errors import MoldauError, NotControllerError, PeerUnreachableError, RequestTimedOutError
from moldau.metadata.image import Endpoint
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.settings.broker import BrokerSettings

log = get_logger("broker_lifecycle")


class ControllerChannel(Protocol):
    """The active controller, wherever it is. Each call is tried once, and finds the controller of that moment."""

    async def register_broker(self, broker: BrokerRegistrationRequest) -> int: ...

    async def heartbeat(
        self, heartbeat: BrokerHeartbeat, timeout_ms: int | None = None
    ) -> BrokerHeartbeatReply: ...


class BrokerLifecycleManager:
    def __init__(
        self,
        node_id: int,
        incarnation_id: UUID,
        controller_channel: ControllerChannel,
        settings: BrokerSettings,
        clock: Clock,
        *,
        cluster_id: str,
        endpoints: Sequence[Endpoint],
        previous_epoch: int = -1,
        on_lease_expired: Callable[[], None] | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`incarnation_id` is new with every start of the process. `previous_epoch` is the broker epoch that the logs
        were closed under, -1 where they were not closed. `on_lease_expired` hears when the lease runs out, `on_fatal`
        of a refusal that comes after `start`."""
        self._registration = BrokerRegistrationRequest(
            broker_id=node_id,
            incarnation_id=incarnation_id,
            endpoints=tuple(endpoints),
            rack=settings.rack or None,
            cluster_id=cluster_id,
            previous_epoch=previous_epoch,
        )
        self._gateway = controller_channel
        self._clock = clock
        self._on_fatal = on_fatal
        self._on_lease_ended = on_lease_expired
        self.lease = BrokerLease(clock)
        self._lease_timer: asyncio.TimerHandle | None = None
        self._state = BrokerLifecycleState(
            node_id,
            heartbeat_interval_ms=settings.broker_heartbeat_interval_ms,
            session_ms=settings.broker_session_timeout_ms,
        )
        self._requests: list[asyncio.Task[None]] = []
        """The last is under way; those before it have been given up and may still be ending."""
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._fatal_error: MoldauError | None = None
        self._last_logged_failure = ""
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
    def phase(self) -> BrokerState:
        return self._state.phase

    async def start(self, previous_incarnations: Sequence[UUID] = ()) -> None:
        """Registers, however long it takes until there is a controller. Raises what the cluster has against this node,
        if that will not pass. `previous_incarnations` are the lives that this node's disk has seen last."""
        self._registration = replace(self._registration, previous_incarnations=tuple(previous_incarnations))
        self._step(StartRequested())
        await self._wait_until(lambda: self.broker_epoch != NO_BROKER_EPOCH)
        self._has_started = True

    async def wait_until_active(self) -> None:
        """Returns when the controller counts on this broker."""
        await self._wait_until(lambda: self.is_active)

    def report(self, metadata_offset: int, not_ready: Sequence[OfflineReplica] = ()) -> None:
        """All of this node has taken the metadata up to `metadata_offset`; `not_ready` are the replicas that could not
        be opened. The controller is told at once: somebody may be waiting for a new topic."""
        self._step(MetadataPublished(metadata_offset, tuple(not_ready)))

    def on_controller_change(self) -> None:
        """Another node has become the controller, as the quorum says: it is told at once that this broker is alive,
        whatever became of what the one before was told last."""
        if not self._is_closed:
            self._cancel_requests()
            self._step(ControllerChanged())

    async def shut_down(self) -> None:
        """Returns when others lead what this broker led, or when nobody can be asked to. From then on there is no
        lease: nothing is acknowledged any more."""
        self._step(ShutdownRequested())
        while not self._has_stopped:
            await self._wait_for_step()

    async def close(self) -> None:
        """Says nothing any more."""
        self._is_closed = True
        self.lease.end()
        self._notify_waiters()
        if self._timer is not None:
            self._timer.cancel()
        self._cancel_requests()
        await asyncio.gather(*self._requests, return_exceptions=True)

    @property
    def _has_stopped(self) -> bool:
        return self._is_closed or self._state.phase is BrokerState.STOPPED

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self._fatal_error is not None:
                raise self._fatal_error
            if self._has_stopped:
                raise NotControllerError("this node is shutting down")
            await self._wait_for_step()

    async def _wait_for_step(self) -> None:
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(told)
        await told

    def _notify_waiters(self) -> None:
        waiting, self._waiters = self._waiters, []
        for told in waiting:
            if not told.done():
                told.set_result(None)

    # Events and effects

    def _step(self, event: Event) -> None:
        if self._is_closed:
            return
        for effect in self._state.step(self._clock.monotonic_ms(), event):
            self._execute(effect)
        self._schedule_timer()
        self._notify_waiters()

    def _execute(self, effect: Effect) -> None:
        match effect:
            case SendRegistration():
                self._start_request(self._send_registration(effect))
            case SendBrokerHeartbeat():
                self._start_request(self._send_heartbeat(effect))
            case ExtendLease():
                self.lease.extend(effect.expires_ms)
                if self._lease_timer is None:
                    self._check_lease()
            case EndLease():
                self.lease.end()
                self._check_lease()
            case Unfenced():
                log.info("broker is active", epoch=self._state.broker_epoch)
            case Fenced():
                log.warning("broker is fenced", epoch=self._state.broker_epoch)
            case ShutdownCompleted():
                if not effect.leadership_moved:
                    log.warning("leadership is not handed over: no controller answers")
            case RejectRegistration():
                self._fatal_error = effect.error
                if self._has_started and self._on_fatal is not None:
                    self._on_fatal(effect.error)

    def _check_lease(self) -> None:
        """Looks again when the lease ends, as far as is known now."""
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        if self._is_closed:
            return
        if self.lease.is_valid():
            left_ms = self.lease.expires_ms - self._clock.monotonic_ms()
            self._lease_timer = asyncio.get_running_loop().call_later(
                max(left_ms, 1) / 1000, self._check_lease
            )
        elif self._on_lease_ended is not None:
            self._on_lease_ended()

    def _schedule_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._state.next_deadline_ms
        if due_ms is not None and not self._is_closed:
            delay_ms = max(due_ms - self._clock.monotonic_ms(), 1)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._step(TimerFired())

    # Requests

    def _start_request(self, request: Coroutine[Any, Any, None]) -> None:
        self._requests = [each for each in self._requests if not each.done()]
        self._requests.append(asyncio.get_running_loop().create_task(request))

    def _cancel_requests(self) -> None:
        for request in self._requests:
            request.cancel()

    async def _send_registration(self, effect: SendRegistration) -> None:
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
            event = RegistrationSucceeded(epoch)
        self._step(event)

    async def _send_heartbeat(self, effect: SendBrokerHeartbeat) -> None:
        beat = BrokerHeartbeat(
            broker_id=self._registration.broker_id,
            broker_epoch=effect.broker_epoch,
            metadata_offset=effect.metadata_offset,
            want_shut_down=effect.want_shut_down,
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
            self._log_failure(error)
            event = HeartbeatFailed(error)
        except Exception:
            log.exception("the heartbeat has failed")
            event = HeartbeatFailed(MoldauError("the heartbeat has failed"))
        else:
            self._last_logged_failure = ""
            event = HeartbeatSucceeded(sent_ms, reply)
        self._step(event)

    def _log_failure(self, error: MoldauError) -> None:
        """That controllers come and go is nothing to tell; what they have against a heartbeat is told once."""
        why = str(error) or type(error).__name__
        if isinstance(error, NotControllerError | PeerUnreachableError | RequestTimedOutError):
            log.debug("heartbeat failed", why=why)
        elif why != self._last_logged_failure:
            log.warning("the controller does not take this broker's heartbeats", why=why)
            self._last_logged_failure = why
