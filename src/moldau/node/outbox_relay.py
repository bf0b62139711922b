"""Relays the outbox in the database of a node's Postgres store, so that the relay needs no process of its own."""

import asyncio

from psycopg.conninfo import make_conninfo

from moldau.client.errors import KafkaError
from moldau.concurrency.tasks import cancel_and_wait
from moldau.observe.logging import get_logger
from moldau.outbox.errors import OutboxError
from moldau.outbox.relay import Relay
from moldau.settings.broker import BrokerSettings

RETRY_S = 10.0
CLOSE_TIMEOUT_S = 2.0
"""How long a batch may take to end when the node stops. After that the next relay finishes it."""

log = get_logger(__name__)


class OutboxRelay:
    """Runs the same relay as `moldau outbox relay`, as a client of this node.

    With several relays for an outbox, one works and the others wait for its end.
    """

    def __init__(self, settings: BrokerSettings, bootstrap: str) -> None:
        self.unexpected_errors = 0
        self._schema = settings.postgres_outbox_schema
        password = {"password": settings.postgres_password} if settings.postgres_password else {}
        self._conninfo = make_conninfo(settings.store, **password)
        self._bootstrap = bootstrap
        self._name = f"node {settings.node_id} at {bootstrap}"
        self._stop: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while not self._stop.done():
            relay = Relay(
                self._conninfo,
                self._bootstrap,
                name=self._name,
                schema=self._schema,
                on_begin=lambda name: log.info("relaying the outbox", schema=self._schema, transactional_id=name),
                on_standby=lambda: log.info("another relay has the outbox", schema=self._schema),
            )
            try:
                await relay.run(self._stop)
            except (OutboxError, KafkaError) as error:
                log.warning("the outbox is not relayed, retrying", schema=self._schema, reason=str(error))
            except Exception:
                self.unexpected_errors += 1
                log.exception("the relay of the outbox failed unexpectedly, retrying", schema=self._schema)
            await asyncio.wait((self._stop,), timeout=RETRY_S)

    async def close(self) -> None:
        """Ends the batch in progress, and gives the outbox to another relay."""
        if not self._stop.done():
            self._stop.set_result(0)
        await asyncio.wait((self._task,), timeout=CLOSE_TIMEOUT_S)
        await cancel_and_wait(self._task)
