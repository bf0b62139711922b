"""`moldau cluster reassign`: moves partitions to the replicas in a reassignment file of Kafka."""

import json
from pathlib import Path
from typing import Annotated, Any, TypeGuard

import typer

from moldau.cli.moves import Cancel, MoveOptions, NoWait, Undo, cancel_moves, move
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, DryRun, Json, Yes
from moldau.cli.reassignment import Targets
from moldau.client.admin.admin import Admin
from moldau.client.record import TopicPartition

INT32_MAX = 2**31 - 1


def cluster_reassign(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help='JSON file in the format of kafka-reassign-partitions: {"version": 1, "partitions": [{"topic": '
            '"orders", "partition": 0, "replicas": [1, 2]}]}.',
        ),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cancel: Cancel = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    yes: Yes = False,
    undo_file: Undo = None,
    as_json: Json = False,
) -> None:
    """Move partitions to the replicas in a file, which kafka-reassign-partitions also reads.

    The plan is printed first. Ctrl-C stops only the command: run it again to see the progress.

    moldau cluster reassign moves.json --dry-run

    moldau cluster reassign moves.json --undo-file undo.json

    moldau cluster reassign moves.json --cancel
    """
    try:
        targets = parse_reassignments(file.read_bytes())
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="FILE") from None
    topics = sorted({each.topic for each in targets})

    async def find_targets(admin: Admin) -> Targets:
        return targets

    async def find_partitions(admin: Admin) -> list[TopicPartition]:
        return list(targets)

    options = MoveOptions(dry_run, yes, no_wait, as_json, undo_file)
    if cancel:
        cancel_moves(find_partitions, bootstrap, topics, options)
    else:
        move(find_targets, bootstrap, topics, options)


def parse_reassignments(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """Returns the replicas of each partition in a reassignment file. Raises ValueError if the file is invalid."""
    try:
        document = json.loads(data)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(document, dict) or document.get("version", 1) != 1:
        raise ValueError('not a reassignment: {"version": 1, "partitions": [...]} is expected')
    entries = document.get("partitions")
    if not isinstance(entries, list) or not entries:
        raise ValueError("`partitions` is not a list of partitions")
    targets: dict[TopicPartition, tuple[int, ...]] = {}
    for number, entry in enumerate(entries, 1):
        partition, replicas = _parse_entry(entry, f"entry {number} of `partitions`")
        if partition in targets:
            raise ValueError(f"{partition} is listed twice")
        targets[partition] = replicas
    return targets


def _parse_entry(entry: Any, where: str) -> tuple[TopicPartition, tuple[int, ...]]:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is not an object")
    topic, index, replicas = (entry.get(name) for name in ("topic", "partition", "replicas"))
    if not isinstance(topic, str) or not topic:
        raise ValueError(f"{where} has no `topic`")
    if not _is_number(index):
        raise ValueError(f"{where} has no `partition` number")
    if not isinstance(replicas, list) or not replicas or not all(_is_number(each) for each in replicas):
        raise ValueError(f"{where} has no list of node ids as `replicas`")
    if len(set(replicas)) < len(replicas):
        raise ValueError(f"{where} has a node twice in `replicas`")
    # A node has one log directory, so there is nothing to choose.
    if entry.get("log_dirs") not in (None, [], ["any"] * len(replicas)):
        raise ValueError(f"{where} has `log_dirs`: replicas cannot be moved between directories")
    return TopicPartition(topic, index), tuple(replicas)


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT32_MAX
