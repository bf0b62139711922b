"""`moldau transaction describe`: state, producer and partitions of transactional ids."""

import json
from dataclasses import asdict
from datetime import UTC, datetime

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import make_table, out_console, print_error, print_table
from moldau.cli.exit_codes import common_exit_code
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Json, TransactionalIds
from moldau.client.admin.admin import Admin
from moldau.client.admin.requester import Results
from moldau.client.admin.types import TransactionDescription
from moldau.client.errors import KafkaError
from moldau.settings.option_parser import duration_text


def transaction_describe(
    transactional_ids: TransactionalIds, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: Json = False
) -> None:
    """Show producer, state, timeout and partitions of transactional ids.

    Client and host are those of the producer. Apache Kafka does not return them.

    moldau transaction describe billing-1
    """

    async def operation(admin: Admin) -> tuple[Results[str, TransactionDescription], int]:
        return await admin.describe_transactions(transactional_ids), admin.cluster.clock.wall_ms()

    descriptions, now_ms = run_admin(operation, bootstrap)
    errors = [each for each in descriptions.values() if isinstance(each, KafkaError)]
    for number, each in enumerate(descriptions.values()):
        if isinstance(each, KafkaError):
            print_error(each)
        elif as_json:
            typer.echo(json.dumps(asdict(each)))
        else:
            if number:
                out_console.print()
            _print_description(each, now_ms)
    if errors:
        raise typer.Exit(common_exit_code(errors))


def _print_description(transaction: TransactionDescription, now_ms: int) -> None:
    facts = make_table("", "")
    facts.show_header = False
    facts.add_row("transactional id", transaction.transactional_id)
    facts.add_row("state", transaction.state)
    facts.add_row("producer", f"id {transaction.producer_id}, epoch {transaction.producer_epoch}")
    facts.add_row("client", transaction.client_id or "-")
    facts.add_row("host", transaction.client_host.removeprefix("/") or "-")
    facts.add_row("coordinator", str(transaction.coordinator))
    facts.add_row("timeout", f"{transaction.timeout_ms} ms")
    if transaction.is_open:
        started = datetime.fromtimestamp(transaction.start_ms / 1000, UTC)
        age = duration_text(max(0, now_ms - transaction.start_ms) // 1000)
        facts.add_row("started", f"{started:%Y-%m-%d %H:%M:%S} UTC, {age} ago")
    if transaction.state == "Ongoing":
        left_ms = transaction.start_ms + transaction.timeout_ms - now_ms
        facts.add_row("time left", duration_text(max(0, left_ms) // 1000))
    facts.add_row("partitions", ", ".join(map(str, sorted(transaction.partitions))) or "-")
    print_table(facts)
