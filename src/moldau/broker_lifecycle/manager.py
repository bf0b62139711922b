"""The broker lifecycle manager: sends registrations and heartbeats to the active controller and maintains the lease."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol
from uuid import UUID

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
    MetadataStalled,
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
from moldau.concurrency.notifier import Notifier
from moldau.controller.requests import BrokerHeartbeat, BrokerHeartbeatReply, BrokerRegistrationRequest, OfflineReplica
from moldau.errors import MoldauError, NotControllerError, PeerUnreachableError, RequestTimedOutError
from moldau.metadata.image import Endpoint
from moldau.metrics.component_metrics import HeartbeatMetrics
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.settings.broker import BrokerSettings

log = get_logger("broker_lifecycle")

EXPIRED_MS = -1
HANDOVER_WAIT_MS = 100
"""How long a response waits until the other brokers have applied a change of leaders. They need some milliseconds."""


class HeartbeatChannel(Protocol):
    """Sends requests to the active controller, without retries."""

    async def register_broker(self, broker: BrokerRegistrationRequest) -> int: ...

    async def heartbeat(self, heartbeat: BrokerHeartbeat, timeout_ms: int | None = None) -> BrokerHeartbeatReply: ...


class BrokerLease:
    """The time until which this broker may act as leader of its partitions. The lease ends before other leaders are
    elected.

    Without a valid lease the broker appends nothing and acknowledges nothing.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.expires_ms = EXPIRED_MS

    def is_valid(self) -> bool:
        return self._clock.monotonic_ms() < self.expires_ms

    def extend(self, expires_ms: int) -> None:
        self.expires_ms = max(self.expires_ms, expires_ms)

    def end(self) -> None:
        self.expires_ms = EXPIRED_MS


class BrokerLifecycleManager:
    def __init__(
        self,
        node_id: int,
        incarnation_id: UUID,
        controller_channel: HeartbeatChannel,
        settings: BrokerSettings,
        clock: Clock,
        *,
        cluster_id: str,
        endpoints: Sequence[Endpoint],
        previous_epoch: int = -1,
        on_lease_expired: Callable[[], None] | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`incarnation_id` is a new random id at each start of the process. `previous_epoch` is the broker epoch of the
        last shutdown, or -1 if that shutdown was not clean. `on_fatal` is called if a registration after `start` is
        rejected."""
        self._registration = BrokerRegistrationRequest(
            broker_id=node_id,
            incarnation_id=incarnation_id,
            endpoints=tuple(endpoints),
            rack=settings.rack or None,
            cluster_id=cluster_id,
            previous_epoch=previous_epoch,
        )
        self._controller_channel = controller_channel
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
        """The task of the latest request is last. Earlier tasks are cancelled, but may not have ended yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._stepped = Notifier()
        self._fatal_error: MoldauError | None = None
        self._last_logged_failure = ""
        """The last failure that was logged; empty after a successful heartbeat."""
        self._has_started = False
        self._is_closed = False
        self.heartbeat_metrics = HeartbeatMetrics()

    @property
    def broker_epoch(self) -> int:
        """The broker epoch, -1 before the first registration."""
        return self._state.broker_epoch

    @property
    def is_active(self) -> bool:
        """Whether the broker is unfenced, according to the last response of the controller."""
        return self._state.is_active and not self._is_closed

    @property
    def phase(self) -> BrokerState:
        return self._state.phase

    async def start(self, previous_incarnations: Sequence[UUID] = ()) -> None:
        """Registers the broker. Retries until a controller is available. Raises if the registration is rejected.
        `previous_incarnations` are the latest incarnations that ran on this disk."""
        self._registration = self._registration._replace(previous_incarnations=tuple(previous_incarnations))
        self._step(StartRequested())
        await self._wait_until(lambda: self.broker_epoch != NO_BROKER_EPOCH)
        self._has_started = True

    async def wait_until_active(self) -> None:
        await self._wait_until(lambda: self.is_active)

    def report(self, metadata_offset: int, not_ready: Sequence[OfflineReplica] = ()) -> None:
        """Reports that this node has published the metadata up to `metadata_offset`, and which replicas it could not
        open. Sends the report at once, because a client may be waiting for a new topic."""
        self._step(MetadataPublished(metadata_offset, tuple(not_ready)))

    def on_metadata_stalled(self) -> None:
        """Ends the lease and lets the controller fence this broker, which may not know the latest leaders. The
        controller unfences it when it has caught up."""
        self._step(MetadataStalled())

    def on_controller_change(self) -> None:
        """Cancels the request to the previous controller and sends the next request to the new controller at once."""
        if not self._is_closed:
            self._cancel_requests()
            self._step(ControllerChanged())

    async def shut_down(self) -> None:
        """Runs a controlled shutdown. Returns when other replicas lead this broker's partitions, when no controller can
        be reached, or after a timeout. The lease has ended when this method returns."""
        self._step(ShutdownRequested())
        while not self._has_stopped:
            await self._stepped.wait()

    @property
    def is_handing_over(self) -> bool:
        """Whether a controlled shutdown is moving leadership to other brokers."""
        return self._state.phase is BrokerState.CONTROLLED_SHUTDOWN and not self._is_closed

    async def wait_for_handover(self) -> None:
        """Waits while a controlled shutdown moves leadership, but not longer than HANDOVER_WAIT_MS.

        Afterwards the other brokers know the new leaders, so a client that gets an error from this broker can continue
        with them.
        """
        deadline_ms = self._clock.monotonic_ms() + HANDOVER_WAIT_MS
        while self.is_handing_over:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return
            await self._stepped.wait(left_ms)

    def stop(self) -> None:
        """Ends the lease without a controlled shutdown, fails pending acknowledgements, and sends no more
        heartbeats."""
        self.lease.end()
        self._check_lease()
        self._stop_heartbeats()

    async def close(self) -> None:
        self.lease.end()
        self._stop_heartbeats()
        await asyncio.gather(*self._requests, return_exceptions=True)

    def _stop_heartbeats(self) -> None:
        self._is_closed = True
        self._stepped.notify_all()
        if self._timer is not None:
            self._timer.cancel()
        self._cancel_requests()

    @property
    def _has_stopped(self) -> bool:
        return self._is_closed or self._state.phase is BrokerState.STOPPED

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._fatal_error is not None:
                raise self._fatal_error
            if self._has_stopped:
                raise NotControllerError("this node is shutting down")
            await self._stepped.wait()

    # Events and effects

    def _step(self, event: Event) -> None:
        if self._is_closed:
            return
        for effect in self._state.step(self._clock.monotonic_ms(), event):
            self._execute(effect)
        self._schedule_timer()
        self._stepped.notify_all()

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
                    log.warning("controlled shutdown failed: no controller responded, other brokers lead later")
            case RejectRegistration():
                self._fatal_error = effect.error
                if self._has_started and self._on_fatal is not None:
                    self._on_fatal(effect.error)

    def _check_lease(self) -> None:
        """Calls `on_lease_expired` if the lease has expired. Otherwise schedules another check for the end of the
        lease."""
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        if self._is_closed:
            return
        if self.lease.is_valid():
            left_ms = self.lease.expires_ms - self._clock.monotonic_ms()
            self._lease_timer = asyncio.get_running_loop().call_later(max(left_ms, 1) / 1000, self._check_lease)
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
                epoch = await self._controller_channel.register_broker(self._registration)
        except TimeoutError:
            event = RegistrationFailed(RequestTimedOutError("the controller did not respond"))
        except MoldauError as error:
            log.info("the registration failed, will retry", reason=str(error) or type(error).__name__)
            event = RegistrationFailed(error)
        except Exception:
            log.exception("the registration failed")
            event = RegistrationFailed(MoldauError("the registration failed"))
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
            want_fence=effect.want_fence,
            not_ready=effect.not_ready,
        )
        sent_ms, sent_us = self._clock.monotonic_ms(), self._clock.monotonic_us()
        metrics = self.heartbeat_metrics
        event: Event
        try:
            async with asyncio.timeout(effect.timeout_ms / 1000):
                reply = await self._controller_channel.heartbeat(beat, effect.timeout_ms)
        except TimeoutError:
            event = HeartbeatFailed(RequestTimedOutError("the controller did not respond"))
        except MoldauError as error:
            self._log_failure(error)
            event = HeartbeatFailed(error)
        except Exception:
            log.exception("the heartbeat failed")
            event = HeartbeatFailed(MoldauError("the heartbeat failed"))
        else:
            self._last_logged_failure = ""
            event = HeartbeatSucceeded(sent_ms, reply)
            metrics.durations.record((self._clock.monotonic_us() - sent_us) / 1000)
        metrics.failures += isinstance(event, HeartbeatFailed)
        self._step(event)

    def _log_failure(self, error: MoldauError) -> None:
        """Logs a rejection as a warning, unless it repeats the last one. Logs other failures at debug level."""
        reason = str(error) or type(error).__name__
        if isinstance(error, NotControllerError | PeerUnreachableError | RequestTimedOutError):
            log.debug("heartbeat failed", reason=reason)
        elif reason != self._last_logged_failure:
            log.warning("the controller rejects this broker's heartbeats", reason=reason)
            self._last_logged_failure = reason
