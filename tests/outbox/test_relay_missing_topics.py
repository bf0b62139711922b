"""Topics that do not exist delay the events of other topics once and not with each event."""

import asyncio
import time
from pathlib import Path

import psycopg
import pytest

from moldau.client import Admin
from support.broker_process import BrokerProcess
from support.outbox import RelayProcess, backlog, moldau, read_topics, wait_until
from support.topics import Topics, unique

pytestmark = pytest.mark.clients


def test_missing_topics_delay_others_only_once(outbox: str, tmp_path: Path, only_moldau: None) -> None:
    with (
        BrokerProcess(tmp_path / "data", "--no-auto-create-topics-enable") as node,
        RelayProcess(outbox, node.bootstrap, tmp_path / "relay.out") as relay,
        psycopg.connect(outbox, autocommit=True) as connection,
    ):
        known, missing = Topics(node.bootstrap).create(), [unique() for _ in range(4)]
        relay.wait_for_output("The relay is running")

        def send(number: int) -> float:
            """Sends events of all topics, and returns how long that took."""
            began = time.monotonic()
            with connection.transaction():
                for topic in missing:
                    connection.execute("SELECT moldau.produce(%s, %s, '{\"event\": 0}')", (topic, str(number)))
                connection.execute("SELECT moldau.produce(%s, 'k', %s)", (known, f'{{"event": {number}}}'))
            wait_until(lambda: backlog(outbox) == 0, relay.output)
            return time.monotonic() - began

        assert send(1) < 3.5 * 5, "all missing topics share one timeout of 5 s"
        assert send(2) + send(3) < 2 * 5, "the relay remembers that they are missing"
        asyncio.run(create(node.bootstrap, missing[0]))
        assert moldau("outbox", "retry", outbox, "1", "6").stdout == "2 events returned to the outbox.\n"
        wait_until(lambda: backlog(outbox) == 0, relay.output)
        assert len(read_topics(node.bootstrap, (missing[0],))) == 2
        assert [each["event"] for each in read_topics(node.bootstrap, (known,))] == [1, 2, 3]


async def create(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic)
