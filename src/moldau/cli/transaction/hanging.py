"""`moldau transaction hanging`: the transactions that hold back last stable offsets."""

import shlex
from typing import Annotated, Any

import typer

from moldau.cli.admin import list_partitions, run_admin
from moldau.cli.console import make_table, pluralize, print_error, print_json_lines, print_notice, print_table
from moldau.cli.exit_codes import common_exit_code
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Json, option, validate_duration, validate_name
from moldau.client.admin.admin import Admin
from moldau.client.admin.types import OpenTransaction, OpenTransactions, OpenTransactionStatus
from moldau.settings.option_parser import duration_text, parse_duration

COMMANDS_MAX = 5
"""The maximum number of suggested commands."""


def transaction_hanging(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topics: Annotated[
        list[str] | None, option("--topic -t", "TOPIC", "Only this topic; can be repeated.", validate_name)
    ] = None,
    older_than: Annotated[
        str | None,
        option(
            "--older-than", "DURATION", "Only transactions that are open for longer, such as 30s.", validate_duration
        ),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show all open transactions, not only the first of each partition.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show which transactions hold back consumers with read_committed.

    These consumers read up to the last stable offset, which is the start of the first open transaction of a partition.
    One line per partition shows that transaction: producer id and epoch, its age, the time left until its coordinator
    aborts it, its start offset, and how many offsets wait from there on. An ongoing transaction ends with its producer
    or its timeout. A hanging one is unknown to its coordinator and never ends; its age is the time since its last
    write. Apache Kafka does not return client and host.

    moldau transaction hanging --topic orders --older-than 1min
    """

    async def operation(admin: Admin) -> tuple[OpenTransactions, int]:
        partitions = await list_partitions(admin, topics) if topics else None
        return await admin.find_open_transactions(partitions), admin.cluster.clock.wall_ms()

    found, now_ms = run_admin(operation, bootstrap, topics=topics or ())
    older_than_ms = 0 if older_than is None else parse_duration(older_than).milliseconds
    selected = found.transactions if show_all else found.holders
    shown = [each for each in selected if (age_ms := each.age_ms(now_ms)) is None or age_ms >= older_than_ms]
    if as_json:
        holders = found.holders
        print_json_lines(_to_json(each, now_ms, is_holder=each in holders) for each in shown)
    elif shown:
        _print_transactions(shown, now_ms)
        _print_advice(shown)
        if not show_all and len(found.transactions) > len(selected):
            more = pluralize(len(found.transactions) - len(selected), "open transaction")
            print_notice(f"{more} behind these: add --all to see them.")
    else:
        where = f" in {', '.join(topics)}" if topics else ""
        age = f" for longer than {older_than}" if older_than else ""
        print_notice(f"No transaction is open{where}{age}.")
    for partition, error in found.errors.items():
        print_notice(f"{partition} could not be searched completely:")
        print_error(error)
    if found.errors:
        raise typer.Exit(common_exit_code(found.errors.values()))


def _print_transactions(transactions: list[OpenTransaction], now_ms: int) -> None:
    # Numbers are not folded in a narrow terminal.
    numbers = ("producer", "age", "left", "start", "waiting")
    rows = make_table("partition", "transactional id", "client", "host", "status", *numbers, numbers=numbers)
    for each in transactions:
        rows.add_row(
            str(each.partition),
            each.transactional_id or "-",
            each.client_id or "-",
            each.client_host.removeprefix("/") or "-",
            each.status.value,
            f"{each.producer.producer_id}:{each.producer.producer_epoch}",
            _duration_text(each.age_ms(now_ms)),
            _duration_text(each.remaining_ms(now_ms)),
            str(each.start_offset),
            f"{each.waiting_records:,}",
        )
    print_table(rows)


def _duration_text(milliseconds: int | None) -> str:
    return "-" if milliseconds is None else duration_text(milliseconds // 1000)


def _print_advice(transactions: list[OpenTransaction]) -> None:
    """Prints how to end the transactions, hanging ones first."""
    commands: dict[str, None] = {}
    for each in sorted(transactions, key=lambda each: each.status is not OpenTransactionStatus.HANGING):
        if each.status is OpenTransactionStatus.HANGING:
            topic, partition = each.partition
            arguments = f"--topic {topic} --partition {partition} --start-offset {each.start_offset}"
            commands[f"moldau transaction abort {arguments}"] = None
        elif each.status is OpenTransactionStatus.ONGOING and each.transaction is not None:
            commands[f"moldau transaction abort {shlex.quote(each.transaction.transactional_id)}"] = None
    if commands:
        print_notice("To end them:")
        for command in list(commands)[:COMMANDS_MAX]:
            print_notice(f"  {command}")
        if len(commands) > COMMANDS_MAX:
            print_notice(f"  ... and {len(commands) - COMMANDS_MAX} more")


def _to_json(transaction: OpenTransaction, now_ms: int, *, is_holder: bool) -> dict[str, Any]:
    producer = transaction.producer
    return {
        "topic": transaction.partition.topic,
        "partition": transaction.partition.partition,
        "status": transaction.status.value,
        "holds_last_stable_offset": is_holder,
        "start_offset": transaction.start_offset,
        "waiting_records": transaction.waiting_records,
        "transactional_id": transaction.transactional_id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "client_id": transaction.client_id,
        "client_host": transaction.client_host,
        "age_ms": transaction.age_ms(now_ms),
        "remaining_ms": transaction.remaining_ms(now_ms),
        "last_timestamp_ms": producer.last_timestamp_ms,
    }
