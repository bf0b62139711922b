"""A process that handles the records of a topic in one ack mode, until SIGTERM or SIGKILL."""

import argparse
import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from ack_modes.deliveries import CALLED, COMPLETED, JournalReader, JournalWriter
from ack_modes.modes import ACKNOWLEDGEMENT_MS, COMMIT_INTERVAL_MS, HANDLER_MS, MODES, RETRIES, Fault, failures
from moldau.client import (
    Acknowledgement,
    Consumer,
    ConsumerRecord,
    DeadLetterTopic,
    HandlerFailedError,
    Producer,
    RecordListener,
)

STOPPED = 3
"""The exit status of a process whose handler has stopped the listener."""


class Handlers:
    """The handlers of all modes. Each takes some milliseconds and fails as the fault says."""

    def __init__(self, journal: JournalWriter, fault: Fault, failed: Iterable[int] = ()) -> None:
        """`failed` are the records that have failed in another process."""
        self._journal = journal
        self._fault = fault
        self._failed = Counter(failed)
        self._background: set[asyncio.Task[None]] = set()

    def _start(self, records: list[ConsumerRecord]) -> list[int]:
        numbers = [int(each.value or b"") for each in records]
        self._journal.write(CALLED, numbers)
        for number in numbers:
            if self._failed[number] < failures(number, self._fault):
                self._failed[number] += 1
                raise ValueError(f"cannot handle {number}")
        return numbers

    async def handle_record(self, record: ConsumerRecord) -> None:
        await self.handle_batch([record])

    async def handle_batch(self, records: list[ConsumerRecord]) -> None:
        numbers = self._start(records)
        await asyncio.sleep(HANDLER_MS / 1000)
        self._journal.write(COMPLETED, numbers)

    def handle_and_acknowledge(self, record: ConsumerRecord, acknowledgement: Acknowledgement) -> None:
        async def complete() -> None:
            await asyncio.sleep(random.uniform(ACKNOWLEDGEMENT_MS, 2 * ACKNOWLEDGEMENT_MS) / 1000)
            self._journal.write(COMPLETED, numbers)
            acknowledgement.acknowledge()

        numbers = self._start([record])
        task = asyncio.create_task(complete())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def work(arguments: argparse.Namespace) -> None:
    mode, fault = MODES[arguments.mode], Fault(arguments.fault)
    with closing(JournalReader(arguments.journal)) as reader:
        called_before = reader.read().calls
    handlers = Handlers(JournalWriter(arguments.journal, arguments.process), fault, called_before)
    stops = fault is Fault.STOPS
    handler = {
        "auto": handlers.handle_record,
        "batch": handlers.handle_batch,
        "manual": handlers.handle_and_acknowledge,
    }[mode.options["ack_mode"]]
    async with (
        Producer(arguments.bootstrap) as producer,
        Consumer(
            arguments.bootstrap,
            group_id=arguments.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=arguments.session_timeout_ms,
            heartbeat_interval_ms=arguments.session_timeout_ms // 10,
        ) as consumer,
    ):
        listener = RecordListener(
            consumer,
            [arguments.topic],
            handler,
            commit_interval_ms=COMMIT_INTERVAL_MS,
            retries=0 if mode.is_at_most_once or stops else RETRIES,
            retry_delay_ms=1,
            on_failure="stop" if stops else DeadLetterTopic(producer, arguments.dead_letters),
            **mode.options,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, listener.stop)
        try:
            await listener.run()
        except HandlerFailedError:
            if not stops:
                raise
            sys.exit(STOPPED)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "topic", "group", "dead_letters", "mode", "fault"):
        parser.add_argument(name)
    parser.add_argument("journal", type=Path)
    parser.add_argument("process", type=int)
    parser.add_argument("session_timeout_ms", type=int)
    asyncio.run(work(parser.parse_args()))


if __name__ == "__main__":
    main()
