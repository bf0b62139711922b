"""`moldau consume`: records of topics, to standard output as they come."""

import asyncio
import base64
import json
import sys
from typing import Annotated, Literal

import typer

from moldau.cli.asking import LOCAL, Bootstrap, run_or_fail
from moldau.client.consumer import Consumer
from moldau.client.record import ConsumerRecord, TopicPartition

POLL_MS = 500


def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    bootstrap: Bootstrap = LOCAL,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", help="Share the topics with this group, and commit how far it has come."
        ),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the first record, where nothing is committed.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after so many records.")
    ] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit", "-e", help="Stop at the end of the topics.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, with key, headers and place.")
    ] = False,
) -> None:
    """Print the values of records, a line each, until Ctrl-C.

    moldau consume orders --from-beginning --exit
    """
    reset: Literal["earliest", "latest"] = "earliest" if from_beginning or exit_at_end else "latest"

    async def run() -> None:
        async with Consumer(bootstrap, group_id=group, auto_offset_reset=reset) as consumer:
            if group is not None:
                consumer.subscribe(topics)
            else:
                await consumer.cluster.wait_for_topics(topics)
                consumer.assign(
                    TopicPartition(topic, each.index)
                    for topic in topics
                    for each in consumer.cluster.topics[topic].partitions
                )
            await _print_records(consumer, count, exit_at_end, as_json)

    try:
        run_or_fail(run(), bootstrap)
    except BrokenPipeError:
        # Whoever read our output has seen enough, as `head` does.
        sys.stderr.close()
        raise typer.Exit(0) from None


async def _print_records(consumer: Consumer, count: int | None, exit_at_end: bool, as_json: bool) -> None:
    left = count
    while left is None or left > 0:
        records = await consumer.poll(POLL_MS, max_records=left)
        for record in records:
            _print(record, as_json)
        sys.stdout.buffer.flush()
        if left is not None:
            left -= len(records)
        if exit_at_end and not records and await _is_at_end(consumer):
            return


async def _is_at_end(consumer: Consumer) -> bool:
    partitions = consumer.assignment
    if not partitions:
        return False
    ends = await consumer.end_offsets(partitions)
    positions = await asyncio.gather(*(consumer.position(each) for each in partitions))
    return all(position >= ends[each] for each, position in zip(partitions, positions, strict=True))


def _print(record: ConsumerRecord, as_json: bool) -> None:
    line = _json(record).encode() if as_json else record.value or b""
    sys.stdout.buffer.write(line + b"\n")


def _json(record: ConsumerRecord) -> str:
    return json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
    )


def _text(data: bytes | None) -> str | dict[str, str] | None:
    """Text where it is text; other bytes in base64, and marked as such."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
