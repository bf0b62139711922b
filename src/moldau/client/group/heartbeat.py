"""Heartbeats, deadlines and retries of a group member. Callers pass the current time."""

from moldau.concurrency.backoff import exponential_backoff_ms


class Heartbeat:
    """The time of the next heartbeat, and the deadlines of the session and of the user's next poll."""

    def __init__(
        self, *, interval_ms: int, session_timeout_ms: int, poll_interval_max_ms: int, retry_backoff_ms: int
    ) -> None:
        self._interval_ms = interval_ms
        self._session_timeout_ms = session_timeout_ms
        self._poll_interval_max_ms = poll_interval_max_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._next_send_at_ms = 0
        self._session_deadline_ms = 0
        self._poll_deadline_ms = 0
        self._last_id = 0
        self._in_flight: int | None = None

    def record_poll(self, now_ms: int) -> None:
        self._poll_deadline_ms = now_ms + self._poll_interval_max_ms

    def reset_timeouts(self, now_ms: int) -> None:
        """Restarts the heartbeat interval and the session timeout after a successful JoinGroup."""
        self._next_send_at_ms = now_ms + self._interval_ms
        self._in_flight = None
        self._extend_session(now_ms)

    def reset_for_coordinator(self, now_ms: int) -> None:
        """Makes a heartbeat to a new coordinator due now. A response of the previous coordinator is ignored."""
        self._next_send_at_ms = now_ms
        self._in_flight = None
        self._extend_session(now_ms)

    def send_heartbeat(self, now_ms: int) -> int:
        """Records a heartbeat sent now and returns its id."""
        self._next_send_at_ms = now_ms + self._interval_ms
        self._last_id += 1
        self._in_flight = self._last_id
        return self._last_id

    def is_in_flight(self, heartbeat_id: int) -> bool:
        return heartbeat_id == self._in_flight

    def receive(self, now_ms: int) -> None:
        """Records a successful response."""
        self._in_flight = None
        self._extend_session(now_ms)

    def fail(self, now_ms: int) -> None:
        self._in_flight = None
        self._next_send_at_ms = now_ms + self._retry_backoff_ms

    def _extend_session(self, now_ms: int) -> None:
        self._session_deadline_ms = now_ms + self._session_timeout_ms

    def should_heartbeat(self, now_ms: int) -> bool:
        return self._in_flight is None and now_ms >= self._next_send_at_ms

    def is_session_expired(self, now_ms: int) -> bool:
        return now_ms >= self._session_deadline_ms

    def is_poll_expired(self, now_ms: int) -> bool:
        return now_ms >= self._poll_deadline_ms

    def next_at_ms(self) -> int:
        """Returns the earliest time at which a heartbeat or a deadline is due."""
        deadline_ms = min(self._session_deadline_ms, self._poll_deadline_ms)
        return min(self._next_send_at_ms, deadline_ms) if self._in_flight is None else deadline_ms


class RetrySchedule:
    """The time of the next attempt, with exponential backoff after failures."""

    def __init__(self, *, backoff_ms: int, backoff_max_ms: int) -> None:
        self._backoff_ms = backoff_ms
        self._backoff_max_ms = backoff_max_ms
        self._failures = 0
        self.next_at_ms = 0

    def succeed(self) -> None:
        self._failures = 0

    def fail(self, now_ms: int) -> None:
        """Schedules the next attempt.

        The first failure causes no delay, because it usually means only that the group has a new generation.
        """
        failures, self._failures = self._failures, self._failures + 1
        delay_ms = exponential_backoff_ms(failures, self._backoff_ms, self._backoff_max_ms) if failures else 0
        self.next_at_ms = now_ms + delay_ms
