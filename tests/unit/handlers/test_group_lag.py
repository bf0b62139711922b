"""DescribeGroupLag while a node takes groups over."""

import asyncio
from typing import Any

from moldau.client import Admin, TopicPartition
from moldau.handlers.a20004_describe_group_lag import describe_group_lag
from moldau.server.api import ClientConnection, RequestContext
from moldau.testing import Broker
from moldau.wire.api_keys import ApiKey
from moldau.wire.kio import ErrorCode
from support.admin_broker import decoded_request


def test_all_groups_are_described_only_when_all_are_loaded() -> None:
    async def describe(broker: Broker) -> Any:
        session = RequestContext(ClientConnection("127.0.0.1:5000", "CLIENTS"), 0, "tests")
        request = decoded_request(ApiKey.DESCRIBE_GROUP_LAG, 0, group_ids=[])
        return await describe_group_lag(request, session, broker.node.broker)

    async def main() -> None:
        async with Broker(topics={"orders": 1}) as broker:
            async with Admin(broker.bootstrap) as admin:
                await admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 0})
            response = await describe(broker)
            assert [each["group_id"] for each in response["groups"]] == ["billing"]
            driver = broker.node.broker.groups._shards.shard_of("billing").driver
            driver.is_loading, shard, driver._shard = True, driver._shard, None
            assert (await describe(broker))["error_code"] == ErrorCode.coordinator_load_in_progress
            driver.is_loading, driver._shard = False, shard
            assert [each["group_id"] for each in (await describe(broker))["groups"]] == ["billing"]

    asyncio.run(asyncio.wait_for(main(), 60))
