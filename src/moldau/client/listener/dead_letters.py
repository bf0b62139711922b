"""Dead letters: records that could not be processed, in a topic of their own, with headers that describe the error.

Header values are UTF-8 text. Times are in milliseconds since 1970.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from moldau.client.errors import KafkaError
from moldau.client.record import ConsumerRecord

if TYPE_CHECKING:
    from moldau.client.producer.producer import Producer

PREFIX = "moldau.error."
REDRIVEN = "moldau.redriven"
"""The header that counts how often a record was sent back to its topic."""


class ErrorHeader(StrEnum):
    REASON = PREFIX + "reason"
    DETAIL = PREFIX + "detail"
    TOPIC = PREFIX + "topic"
    PARTITION = PREFIX + "partition"
    OFFSET = PREFIX + "offset"
    TIMESTAMP = PREFIX + "timestamp"
    PIPELINE = PREFIX + "pipeline"
    """The name of the pipeline, or the id of the consumer group whose handler failed."""
    SOURCE = PREFIX + "source"
    TIME = PREFIX + "time"
    """The time when the error was detected."""


HANDLER_FAILED = "handler_failed"
"""The reason of dead letters from `RecordListener`."""


def error_headers(record: ConsumerRecord, texts: Mapping[ErrorHeader, str]) -> list[tuple[str, bytes | None]]:
    """Returns the headers of a dead letter: those of the record, and new ones about its origin and the error.

    Old error headers are dropped, so that a record that was sent back and fails again has only those of its last
    failure.
    """
    origin = {
        ErrorHeader.TOPIC: record.topic,
        ErrorHeader.PARTITION: str(record.partition),
        ErrorHeader.OFFSET: str(record.offset),
        ErrorHeader.TIMESTAMP: str(record.timestamp),
    }
    kept = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
    return [*kept, *((str(name), text.encode(errors="replace")) for name, text in (origin | dict(texts)).items())]


@dataclass(frozen=True)
class DeadLetterTopic:
    """Where `RecordListener` sends records whose handler failed."""

    producer: "Producer"
    topic: str

    async def send(self, records: Sequence[ConsumerRecord], texts: Mapping[ErrorHeader, str]) -> None:
        """Returns when the dead letters are acknowledged. Raises KafkaError if one cannot be written."""
        try:
            deliveries = [
                await self.producer.send(self.topic, record.value, key=record.key, headers=error_headers(record, texts))
                for record in records
            ]
            for delivery in deliveries:
                await delivery
        except KafkaError as error:
            place = f"{records[0].topic}-{records[0].partition} offset {records[0].offset}"
            raise KafkaError(
                error.code,
                f"the dead letters from {place} on cannot be written to {self.topic!r}, so their records are not "
                f"acknowledged: {error.message or error.code.name}",
            ) from error
