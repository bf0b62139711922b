"""Log lines about transactions that time out. Their number is limited, because many can time out at once."""

from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.transactions.requests import LongTransaction

log = get_logger(__name__)

LINES_PER_INTERVAL_MAX = 20
INTERVAL_MS = 60_000


class TimeoutLog:
    """Writes at most LINES_PER_INTERVAL_MAX lines per interval, and counts the rest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._interval_start_ms = 0
        self._written = 0
        self._omitted = 0

    def write(self, transaction: LongTransaction) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._interval_start_ms >= INTERVAL_MS:
            if self._omitted:
                log.warning(
                    "more transactions have timed out or soon will: run `moldau transaction list --state Ongoing`",
                    count=self._omitted,
                )
            self._interval_start_ms, self._written, self._omitted = now_ms, 0, 0
        if self._written == LINES_PER_INTERVAL_MAX:
            self._omitted += 1
            return
        self._written += 1
        message = (
            "a transaction has timed out and is aborted: its producer must end it sooner or set a longer "
            "transaction.timeout.ms"
            if transaction.is_timed_out
            else "a transaction will be aborted soon: it has been open for most of its timeout"
        )
        log.warning(
            message,
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer.producer_id,
            producer_epoch=transaction.producer.producer_epoch,
            client_id=transaction.client.client_id,
            client_host=transaction.client.host,
            partitions=transaction.partition_count,
            open_ms=transaction.open_ms,
            timeout_ms=transaction.timeout_ms,
        )
