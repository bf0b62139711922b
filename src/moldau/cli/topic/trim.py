"""`moldau topic trim`: deletes the oldest records of a topic."""

import time
from collections.abc import Collection, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from moldau.cli.admin import list_partitions, run_admin
from moldau.cli.console import (
    exit_on_failures,
    make_table,
    out_console,
    pluralize,
    print_json_lines,
    print_notice,
    print_table,
)
from moldau.cli.exit_codes import CommandError
from moldau.cli.log_position import POSITION_HELP, LogPosition, PositionError, parse_position
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, DryRun, Json, Partitions, Topic, Yes, option
from moldau.cli.progress import run_in_batches
from moldau.cli.reassignment import find_partitions
from moldau.client.admin.admin import Admin
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import TopicPartition

PARTITIONS_PER_REQUEST = 100


class Trim(NamedTuple):
    """The offsets of one partition: the log start, the log start after the trim, and the high watermark."""

    start: int
    new_start: int
    end: int

    @property
    def offsets(self) -> int:
        """The number of offsets that are deleted. It can exceed the number of records."""
        return self.new_start - self.start


def topic_trim(
    topic: Topic,
    before: Annotated[str, option("--before", "POSITION", f"Delete the records before this: {POSITION_HELP}.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partitions: Partitions = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete the oldest records of a topic. This cannot be undone.

    The plan is printed first. A time means the first record at or after it; --before end deletes all records.

    moldau topic trim orders --before '7 days ago' --dry-run

    moldau topic trim orders --before 1200 --partition 0
    """
    try:
        position = parse_position(before, time.time_ns() // 1_000_000)
    except PositionError as error:
        raise typer.BadParameter(str(error), param_hint="--before") from None
    plan = run_admin(lambda admin: _plan(admin, topic, partitions, position), bootstrap, topics=[topic])
    if as_json:
        print_json_lines(_to_json(partition, trim) for partition, trim in plan.items())
    else:
        _print_plan(plan)
    trims = {partition: trim.new_start for partition, trim in plan.items() if trim.offsets}
    if dry_run or not trims:
        print_notice("Nothing was changed." if trims else "There are no records to delete.")
        return
    count = sum(trim.offsets for trim in plan.values())
    if not yes:
        typer.confirm(f"Delete {pluralize(count, 'record')} of {topic}?", abort=True, err=True)

    async def delete(admin: Admin) -> dict[TopicPartition, KafkaError | int]:
        async def delete_batch(batch: Sequence[TopicPartition]) -> dict[TopicPartition, KafkaError | int]:
            return await admin.delete_records({each: trims[each] for each in batch})

        return await run_in_batches(
            "deleting", "partition", list(trims), delete_batch, batch_size=PARTITIONS_PER_REQUEST
        )

    results = run_admin(delete, bootstrap, topics=[topic], has_progress=True)
    failed: dict[TopicPartition, Exception] = {
        partition: result for partition, result in results.items() if isinstance(result, KafkaError)
    }
    if not as_json:
        deleted = sum(plan[partition].offsets for partition in results if partition not in failed)
        out_console.print(f"{topic}: {pluralize(deleted, 'record')} deleted", markup=False)
    exit_on_failures(failed)


async def _plan(
    admin: Admin, topic: str, indexes: Sequence[int] | None, position: LogPosition
) -> dict[TopicPartition, Trim]:
    selected = await list_partitions(admin, [topic])
    if indexes:
        selected = [TopicPartition(topic, index) for index in sorted(set(indexes))]
        await find_partitions(admin, selected)
    policy = (await admin.topic_configs(topic)).get("cleanup.policy")
    if policy is not None and "delete" not in (policy.value or ""):
        raise CommandError(
            f"{topic} has cleanup.policy={policy.value}: only compaction deletes its records. To trim it, run `moldau "
            f"topic alter {topic} --config cleanup.policy=compact,delete` first."
        )
    starts, without_leader = await admin.list_available_offsets(dict.fromkeys(selected, EARLIEST))
    if without_leader:
        raise _leader_error(topic, without_leader, selected)
    ends = await admin.list_offsets(dict.fromkeys(selected, LATEST))
    at_time = await admin.list_offsets(dict.fromkeys(selected, position.value)) if position.to == "time" else {}
    plan: dict[TopicPartition, Trim] = {}
    for each in selected:
        start, end = starts[each].offset, ends[each].offset
        wanted = {
            "beginning": start,
            "end": end,
            "offset": position.value,
            "last": end - position.value,
            # A time after the last record means the end.
            "time": at_time[each].offset if each in at_time else end,
        }[position.to]
        plan[each] = Trim(start, min(max(wanted, start), end), end)
    return plan


def _leader_error(
    topic: str, without_leader: Collection[TopicPartition], selected: Sequence[TopicPartition]
) -> KafkaError:
    """Returns why nothing is deleted. A deletion cannot be undone, so the user decides whether to trim the others."""
    names = ", ".join(map(str, sorted(without_leader)))
    verb = "has" if len(without_leader) == 1 else "have"
    text = f"{names} {verb} no leader, so nothing was deleted."
    others = [f"--partition {each.partition}" for each in selected if each not in without_leader]
    if others:
        text += f" To trim only the other partitions of {topic}, add {' '.join(others)}."
    return KafkaError(ErrorCode.leader_not_available, text)


def _print_plan(plan: dict[TopicPartition, Trim]) -> None:
    numbers = ("partition", "log start", "new log start", "end", "records")
    rows = make_table("topic", *numbers, numbers=numbers)
    for partition, trim in plan.items():
        rows.add_row(
            partition.topic,
            str(partition.partition),
            str(trim.start),
            str(trim.new_start),
            str(trim.end),
            f"{trim.offsets:,}",
        )
    print_table(rows)


def _to_json(partition: TopicPartition, trim: Trim) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "log_start_offset": trim.start,
        "new_log_start_offset": trim.new_start,
        "end_offset": trim.end,
        "records": trim.offsets,
    }
