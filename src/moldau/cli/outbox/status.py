"""`moldau outbox status`: backlog, dead letters and relay of an outbox."""

from typing import TYPE_CHECKING

from moldau.cli.console import make_table, print_json_lines, print_notice, print_table
from moldau.cli.outbox.parameters import DEFAULT, DatabaseUrl, Schema, run_in_database
from moldau.cli.parameters import Json
from moldau.settings.option_parser import duration_text

if TYPE_CHECKING:
    from moldau.outbox.database import Connection
    from moldau.outbox.status import OpenTransaction, OutboxStatus

OLD_TRANSACTION_S = 1.0
"""Younger open transactions are not shown: there are always some."""


def outbox_status(database_url: DatabaseUrl, schema: Schema = DEFAULT, as_json: Json = False) -> None:
    """Show how many events wait and for how long, dead letters, and the relay.

    It also shows the oldest open transaction on the server that has written something. Its own events are sent when it
    commits, and until it ends Postgres cannot clean up the events that were sent.

    moldau outbox status postgresql://localhost/shop
    """

    async def operation(connection: "Connection") -> "OutboxStatus":
        from moldau.outbox.status import read_status

        return await read_status(connection, schema)

    status = run_in_database(database_url, operation)
    if as_json:
        print_json_lines([_to_json(status)])
        return
    facts = make_table("", "")
    facts.show_header = False
    oldest = f", the oldest for {_age(status.backlog_s)}" if status.backlog_rows else ""
    facts.add_row("backlog", f"{_rows(status.backlog_rows)}{oldest}")
    facts.add_row("dead letters", f"{_rows(status.failed_rows)} failed, {status.waiting_rows:,} wait for them")
    if status.relay is None:
        facts.add_row("relay", "none is running")
    else:
        since = f"{status.relay.since:%Y-%m-%d %H:%M:%S %Z}"
        standbys = f", {status.standbys} on standby" if status.standbys else ""
        facts.add_row("relay", f"{status.relay.name}, since {since}{standbys}")
    facts.add_row("transactional id", f"moldau-outbox-{status.outbox_id}")
    writer = status.oldest_writer
    if writer is not None and (writer.age_s or 0) >= OLD_TRANSACTION_S:
        facts.add_row("oldest open writer", _describe(writer))
        if writer.query:
            query_age = "" if writer.query_age_s is None else f"{_age(writer.query_age_s)} ago: "
            facts.add_row("its last query", query_age + " ".join(writer.query.split()))
    print_table(facts)
    if status.relay is None and status.backlog_rows:
        print_notice("Start a relay: moldau outbox relay DATABASE_URL --bootstrap HOST:PORT")
    if status.failed_rows:
        print_notice("`moldau outbox dead` shows the failed events; `retry` or `discard` lets their keys go on.")
    if writer is not None and (writer.age_s or 0) >= OLD_TRANSACTION_S:
        print_notice(f"To end the open transaction: {writer.end_command};")
    if status.has_hidden_writers:
        print_notice("Open transactions of others are hidden from this role: GRANT pg_read_all_stats to it.")


def _rows(count: int) -> str:
    return f"{count:,} row" if count == 1 else f"{count:,} rows"


def _age(seconds: float) -> str:
    return duration_text(int(seconds)) if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _describe(writer: "OpenTransaction") -> str:
    who = f"prepared transaction {writer.prepared_id}" if writer.pid is None else f"process {writer.pid}"
    age = "" if writer.age_s is None else f", open for {_age(writer.age_s)}"
    application = f", application {writer.application}" if writer.application else ""
    return f"{who}{age}, user {writer.user}, database {writer.database}{application}, {writer.state}"


def _to_json(status: "OutboxStatus") -> dict[str, object]:
    writer, relay = status.oldest_writer, status.relay
    return {
        "outbox_id": status.outbox_id,
        "transactional_id": f"moldau-outbox-{status.outbox_id}",
        "version": status.version,
        "backlog_rows": status.backlog_rows,
        "backlog_seconds": round(status.backlog_s, 3),
        "failed_rows": status.failed_rows,
        "waiting_rows": status.waiting_rows,
        "batch": status.batch,
        "relay": None if relay is None else {"name": relay.name, "since": relay.since.isoformat(), "pid": relay.pid},
        "standbys": status.standbys,
        "oldest_writer": None if writer is None else {**writer._asdict(), "end_command": writer.end_command},
        "has_hidden_writers": status.has_hidden_writers,
    }
