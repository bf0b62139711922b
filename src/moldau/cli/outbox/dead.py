"""`moldau outbox dead`: lists the events that could not be sent."""

from typing import TYPE_CHECKING

from moldau.cli.console import bytes_to_json, make_table, print_json_lines, print_notice, print_table
from moldau.cli.outbox.parameters import DEFAULT, DatabaseUrl, Schema, run_in_database
from moldau.cli.parameters import Json

if TYPE_CHECKING:
    from moldau.outbox.database import Connection
    from moldau.outbox.dead_letters import DeadRow


def outbox_dead(database_url: DatabaseUrl, schema: Schema = DEFAULT, as_json: Json = False) -> None:
    """List the events that could not be sent, with the error.

    Later events with the same topic and key wait for them, so that their order is kept.

    moldau outbox dead postgresql://localhost/shop
    """

    async def operation(connection: "Connection") -> "list[DeadRow]":
        from moldau.outbox.dead_letters import list_dead

        return await list_dead(connection, schema)

    rows = run_in_database(database_url, operation)
    if as_json:
        print_json_lines(
            {
                **each._asdict(),
                "key": None if each.key is None else bytes_to_json(each.key),
                "created_at": each.created_at.isoformat(),
            }
            for each in rows
        )
        return
    if not rows:
        print_notice("No event has failed.")
        return
    table = make_table("id", "topic", "key", "bytes", "waiting", "created", "error", numbers=("id", "bytes", "waiting"))
    for each in rows:
        table.add_row(
            str(each.id),
            each.topic if each.partition is None else f"{each.topic}-{each.partition}",
            "-" if each.key is None else each.key.decode(errors="backslashreplace"),
            "-" if each.value_bytes is None else f"{each.value_bytes:,}",
            str(each.waiting),
            f"{each.created_at:%Y-%m-%d %H:%M:%S}",
            each.error,
        )
    print_table(table)
    print_notice("When the cause is gone: moldau outbox retry DATABASE_URL ID, or --all.")
