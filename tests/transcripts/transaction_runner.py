"""Runs the commands of a transcript on one transactional id, and prints written records, markers and responses.

A starts [old]      A continues      A adds orders-0 orders-1      A verifies orders-0      A commits      A aborts
A repeats           (its last end of a transaction)
replicas catch up   (the high watermark reaches the end of the log)       markers are written
coordinator fails over   (the next one has only committed records)        10s pass
"""

from collections.abc import Callable

from moldau.errors import MoldauError
from moldau.transactions.records import StateRecord, TransactionRecord
from moldau.transactions.requests import ProducerIdAndEpoch, TransactionMarkers
from moldau.transactions.transaction_metadata import TV0, TV2, TopicPartition
from support.transactions import ShardHarness


class _Producer:
    """A producer in the transcript, with what it knows of itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.client_version = TV2
        self.identity = ProducerIdAndEpoch()
        self.last_end: tuple[ProducerIdAndEpoch, bool] | None = None


class TransactionTranscriptRunner:
    def __init__(self) -> None:
        self._harness = ShardHarness()
        self._producers: dict[str, _Producer] = {}
        self._high_watermark = 0
        self._written = 0
        self._pending: list[tuple[int, str, str]] = []
        """Responses that wait until the high watermark reaches an offset."""
        self._markers: list[TransactionMarkers] = []
        self._lines: list[str] = []

    async def execute(self, command: str) -> list[str]:
        self._lines = []
        who, *words = command.split()
        match (who, *words):
            case (_, "pass"):
                self._harness.now_ms += int(who.removesuffix("s")) * 1_000
                self._harness.tick()
            case ("replicas", *_):
                self._high_watermark = self._harness.end_offset
            case ("markers", *_):
                self._write_markers()
            case ("coordinator", *_):
                self._fail_over()
            case _:
                producer = self._producers.setdefault(who, _Producer(who))
                getattr(self, f"_{words[0]}")(producer, *words[1:])
        self._emit_progress()
        return self._lines

    # Commands of producers

    def _starts(self, producer: _Producer, *how: str) -> None:
        producer.client_version = TV0 if "old" in how else TV2
        self._respond(producer, "start", self._harness.init, keep=True)

    def _continues(self, producer: _Producer) -> None:
        self._respond(producer, "continue", lambda: self._harness.init(expected=producer.identity), keep=True)

    def _adds(self, producer: _Producer, *partitions: str) -> None:
        self._respond(
            producer,
            "add",
            lambda: self._harness.add(
                producer.identity, *map(_partition, partitions), client_version=producer.client_version
            ),
        )

    def _verifies(self, producer: _Producer, partition: str) -> None:
        def verify() -> None:
            (error,) = self._harness.verify(producer.identity, _partition(partition)).values()
            if error is not None:
                raise error

        self._respond(producer, "verify", verify)

    def _commits(self, producer: _Producer) -> None:
        self._end(producer, "commit", producer.identity, commit=True)

    def _aborts(self, producer: _Producer) -> None:
        self._end(producer, "abort", producer.identity, commit=False)

    def _repeats(self, producer: _Producer) -> None:
        assert producer.last_end is not None
        identity, commit = producer.last_end
        self._end(producer, "commit" if commit else "abort", identity, commit=commit)

    def _end(self, producer: _Producer, what: str, identity: ProducerIdAndEpoch, *, commit: bool) -> None:
        producer.last_end = (identity, commit)
        self._respond(
            producer,
            what,
            lambda: self._harness.end(identity, commit=commit, client_version=producer.client_version),
            keep=producer.client_version >= TV2,
        )

    def _respond(
        self, producer: _Producer, what: str, request: Callable[[], ProducerIdAndEpoch | None], *, keep: bool = False
    ) -> None:
        try:
            response = request()
        except MoldauError as error:
            text = type(error).__name__.removesuffix("Error")
        else:
            text = "ok"
            if keep and response is not None:
                producer.identity = response
                text = f"ok, {_name(response)}"
        self._pending.append((self._harness.end_offset, producer.name, f"{what}: {text}"))

    # The coordinator

    def _write_markers(self) -> None:
        markers, self._markers = self._markers, []
        for each in markers:
            self._harness.apply(self._harness.shard.complete_transaction(self._harness.now, each))

    def _fail_over(self) -> None:
        kept, end_offset = [], 0
        for records in self._harness.log:
            end_offset += len(records)
            if end_offset <= self._high_watermark:
                kept.append(records)
        lost = len(self._harness.log) - len(kept)
        if lost:
            self._emit("log", f"loses {lost} uncommitted records")
        self._harness.log = kept
        self._written = self._harness.end_offset
        self._harness.reload()
        self._markers.clear()
        for _, name, what in self._pending:
            self._emit(name, f"{what.split(':')[0]}: no response")
        self._pending.clear()

    # Output

    def _emit_progress(self) -> None:
        records = [record for batch in self._harness.log for record in batch]
        for offset, record in enumerate(records[self._written :], self._written):
            self._emit("log", f"{offset}: {_describe(record)}")
        self._written = len(records)
        for markers in self._harness.take_markers(self._high_watermark):
            self._markers.append(markers)
            outcome = "commit" if markers.commit else "abort"
            where = ", ".join(f"{topic}-{index}" for topic, index in sorted(markers.partitions)) or "no partition"
            identity = ProducerIdAndEpoch(markers.producer_id, markers.producer_epoch)
            self._emit("markers", f"{outcome} of {_name(identity)} to {where}")
        waiting = []
        for end_offset, name, what in self._pending:
            if end_offset <= self._high_watermark:
                self._emit(name, what)
            else:
                waiting.append((end_offset, name, what))
        self._pending = waiting

    def _emit(self, who: str, what: str) -> None:
        self._lines.append(f"{who:<8} {what}")


def _partition(name: str) -> TopicPartition:
    topic, _, index = name.rpartition("-")
    return topic, int(index)


def _name(identity: ProducerIdAndEpoch) -> str:
    return f"producer {identity.producer_id} epoch {identity.producer_epoch}"


def _describe(record: StateRecord) -> str:
    assert isinstance(record, TransactionRecord)
    metadata = record.metadata
    assert metadata is not None
    identity = ProducerIdAndEpoch(metadata.producer_id, metadata.producer_epoch)
    partitions = ", ".join(f"{topic}-{index}" for topic, index in sorted(metadata.partitions))
    return f"{metadata.state.label} {_name(identity)}{': ' + partitions if partitions else ''}"
