"""`moldau transaction` in a cluster whose nodes die."""

import asyncio
import json
import time
from typing import Any

from typer.testing import CliRunner, Result

from moldau.cli.commands import app
from moldau.client import Admin, Producer, ProducerFencedError
from moldau.testing import Cluster
from support.transaction_cluster import PATIENCE_S, STATE_PARTITIONS

PARTITIONS = 6
TOPIC = "orders"


def test_the_next_coordinator_and_leaders_know_the_producer() -> None:
    def moldau(*arguments: str) -> Result:
        result = CliRunner().invoke(app, ["transaction", *arguments], env={"MOLDAU_BOOTSTRAP": cluster.bootstrap})
        assert result.exit_code == 0, result.output
        return result

    def hanging() -> list[dict[str, Any]]:
        return [json.loads(line) for line in moldau("hanging", "--topic", TOPIC, "--json").stdout.splitlines()]

    async def scenario() -> None:
        async with (
            Admin(cluster.bootstrap) as admin,
            Producer(cluster.bootstrap, transactional_id="billing-1", client_id="billing") as producer,
        ):
            transaction = producer.transaction()
            await transaction.begin()
            for partition in range(PARTITIONS):
                await (await producer.send(TOPIC, b"x", partition=partition))
            coordinator = (await admin.describe_transaction("billing-1")).coordinator
            await asyncio.to_thread(cluster.kill, coordinator)
            await asyncio.to_thread(find_and_end, coordinator)
            try:
                await transaction.commit()
            except ProducerFencedError:
                return
            raise AssertionError("the producer was not fenced")

    def find_and_end(killed: int) -> None:
        found = hanging()
        assert [each["partition"] for each in found] == list(range(PARTITIONS))
        assert {(each["status"], each["transactional_id"]) for each in found} == {("ongoing", "billing-1")}
        assert {(each["client_id"], each["client_host"]) for each in found} == {("billing", "/127.0.0.1")}
        described = json.loads(moldau("describe", "billing-1", "--json").stdout)
        assert described["coordinator"] != killed
        assert (described["client_id"], described["client_host"]) == ("billing", "/127.0.0.1")
        moldau("abort", "billing-1", "--yes")
        deadline = time.monotonic() + PATIENCE_S
        while hanging():
            assert time.monotonic() < deadline

    settings = {"transaction.state.log.num.partitions": str(STATE_PARTITIONS)}
    with Cluster(3, topics={TOPIC: PARTITIONS}, settings=settings) as cluster:
        asyncio.run(scenario())
