"""`moldau transaction` and the members of transaction groups, for example Spark tasks whose driver has died."""

import asyncio
import json

import pytest
from typer.testing import CliRunner, Result

from moldau.cli.commands import app
from moldau.client import Cluster, KafkaError
from moldau.client.errors import ErrorCode
from moldau.client.producer.transaction_group import TransactionGroup
from moldau.testing import Broker
from moldau.wire.transaction_group_id import member_transactional_id
from support.topics import Topics, unique


def test_an_orphaned_member_is_visible_and_can_be_ended() -> None:
    async def scenario() -> None:
        async with Cluster(node.bootstrap, client_id="spark") as cluster:
            group = TransactionGroup(cluster, group_id, "r1", transaction_timeout_ms=60_000)
            started = await group.start_member(0, "task-0")
            assert started is not None
            await started.producer.send(topic, b"orphaned", partition=0)
            member = await started.finish()
            await asyncio.to_thread(end_it, member_transactional_id(group_id, "task-0"))
            with pytest.raises(KafkaError) as refused:
                await group.commit(0, [member])
            assert refused.value.code is ErrorCode.producer_fenced

    def moldau(*arguments: str) -> Result:
        result = CliRunner().invoke(app, ["transaction", *arguments], env={"MOLDAU_BOOTSTRAP": node.bootstrap})
        assert result.exit_code == 0, result.output
        return result

    def end_it(transactional_id: str) -> None:
        found = json.loads(moldau("hanging", "--topic", topic, "--json").stdout)
        assert (found["transactional_id"], found["status"]) == (transactional_id, "ongoing")
        assert (found["client_id"], found["client_host"]) == ("spark", "/127.0.0.1")
        moldau("abort", transactional_id, "--yes")
        assert "No transaction is open" in moldau("hanging", "--topic", topic).stderr

    with Broker() as node:
        topic, group_id = Topics(node.bootstrap).create(), unique("query")
        asyncio.run(scenario())
