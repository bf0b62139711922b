"""The clocks of a group member, wound with the times that its steps are given."""

from moldau.concurrency.backoff import exponential_backoff_ms


class Heartbeat:
    """When the next heartbeat is due, until when the coordinator must have answered one, and until when the user
    must have polled again."""

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
        """The member is in a new generation, of which the coordinator has just told it."""
        self._next_send_at_ms = now_ms + self._interval_ms
        self._in_flight = None
        self._extend_session(now_ms)

    def reset_for_coordinator(self, now_ms: int) -> None:
        """Another coordinator was found: it should hear of the member soon. What the last one still answers does
        not count."""
        self._next_send_at_ms = now_ms
        self._in_flight = None
        self._extend_session(now_ms)

    def send_heartbeat(self, now_ms: int) -> int:
        """The number of a heartbeat that goes out now."""
        self._next_send_at_ms = now_ms + self._interval_ms
        self._last_id += 1
        self._in_flight = self._last_id
        return self._last_id

    def is_in_flight(self, beat: int) -> bool:
        return beat == self._in_flight

    def answered(self, now_ms: int) -> None:
        self._in_flight = None
        self._extend_session(now_ms)

    def failed(self, now_ms: int) -> None:
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
        """When one of the three has to be looked at again."""
        ends_ms = min(self._session_deadline_ms, self._poll_deadline_ms)
        return min(self._next_send_at_ms, ends_ms) if self._in_flight is None else ends_ms


class RetrySchedule:
    """Tries at one thing, further apart the more of them have failed in a row."""

    def __init__(self, *, backoff_ms: int, backoff_max_ms: int) -> None:
        self._backoff_ms = backoff_ms
        self._backoff_max_ms = backoff_max_ms
        self._failures = 0
        self.next_at_ms = 0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, now_ms: int) -> None:
        """The first time the next try may come at once: most often the group has only moved on."""
        before, self._failures = self._failures, self._failures + 1
        self.next_at_ms = now_ms + (
            exponential_backoff_ms(before, self._backoff_ms, self._backoff_max_ms) if before else 0
        )
