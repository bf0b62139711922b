"""A process that copies a topic to another one exactly once, until it is killed. Prints a line per transaction."""

import argparse
import asyncio

from moldau.client import Consumer, Producer, exactly_once


async def copy(arguments: argparse.Namespace) -> None:
    async with (
        Producer(arguments.bootstrap, transactional_id=arguments.worker, linger_ms=0) as producer,
        Consumer(
            arguments.bootstrap,
            group_id=arguments.group,
            group_instance_id=arguments.worker if arguments.static else None,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=arguments.session_timeout_ms,
            heartbeat_interval_ms=300,
        ) as consumer,
    ):
        consumer.subscribe([arguments.input])
        while True:
            async with exactly_once(consumer, producer, max_records=arguments.max_records) as records:
                for record in records:
                    await producer.send(arguments.output, record.value, key=record.key, partition=record.partition)
            if records:
                print(len(records), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "input", "output", "group", "worker"):
        parser.add_argument(name)
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--session-timeout-ms", type=int, default=6_000)
    parser.add_argument("--max-records", type=int, default=20)
    asyncio.run(copy(parser.parse_args()))


if __name__ == "__main__":
    main()
