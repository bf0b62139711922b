"""`moldau outbox relay`: sends the rows of an outbox to Kafka."""

import os
import socket
from typing import Annotated

import typer

from moldau.cli.console import pluralize, print_notice
from moldau.cli.outbox.parameters import DEFAULT, DatabaseUrl, Schema, run_outbox
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, option
from moldau.cli.signals import stop_signal
from moldau.observe.logging import configure
from moldau.platform.clock import SystemClock
from moldau.records.compression import CODECS_BY_NAME

CODECS = [each for each in CODECS_BY_NAME if each != "uncompressed"]


def outbox_relay(
    database_url: DatabaseUrl,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    schema: Schema = DEFAULT,
    compression: Annotated[
        str, typer.Option(metavar="CODEC", help=f"Compression codec: {', '.join(CODECS)}.")
    ] = "none",
    poll_ms: Annotated[
        int,
        option("--poll-ms", "NUMBER", "How often to look for events while there are none, in ms.", min=1, max=10_000),
    ] = 10,
    reset_position: Annotated[
        bool,
        typer.Option(
            "--reset-position",
            help="Continue although Kafka's position does not fit this database: after a restored backup, or with "
            "another cluster. Events of one batch may be sent twice.",
        ),
    ] = False,
) -> None:
    """Send the events of an outbox to Kafka, each exactly once, until it is stopped (Ctrl-C, SIGTERM).

    Consumers read with read_committed. One relay works at a time, others wait for its end. Failures of Postgres and
    Kafka are retried.

    moldau outbox relay postgresql://localhost/shop --bootstrap 127.0.0.1:9092
    """
    if compression not in CODECS:
        raise typer.BadParameter(f"must be one of {', '.join(CODECS)}", param_hint="--compression")
    configure(level="info", clock=SystemClock().wall_ms)

    async def run() -> None:
        from moldau.outbox.relay import Relay

        relay = Relay(
            database_url,
            bootstrap,
            name=f"{socket.gethostname()}:{os.getpid()}",
            schema=schema,
            compression=compression,
            poll_ms=poll_ms,
            resets_position=reset_position,
            on_begin=lambda name: print_notice(f"The relay is running. Its transactional id is {name}."),
            on_standby=lambda: print_notice("Another relay is running; this one takes over when it ends."),
        )
        with stop_signal() as stop:
            await relay.run(stop)
        dead = f", {relay.counts.dead:,} became dead letters" if relay.counts.dead else ""
        print_notice(f"The relay has stopped. It sent {pluralize(relay.counts.sent, 'event')}{dead}.")

    run_outbox(run(), bootstrap)
