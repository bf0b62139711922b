"""InitProducerId: refused requests in the log."""

import asyncio
import logging

import pytest

from moldau.handlers import REGISTRY
from moldau.server.api import ClientConnection
from moldau.server.dispatcher import Dispatcher
from moldau.testing import Broker
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import encoder
from moldau.wire.frames import encode_request_header


def test_a_long_id_is_truncated_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Broker() as broker:
            frame = encode_request_header(ApiKey.INIT_PRODUCER_ID, 1, 7, "client-" + "c" * 30_000)
            tree = {"transactional_id": "transaction-" + "t" * 30_000, "transaction_timeout": 60_000}
            encoder(ApiKey.INIT_PRODUCER_ID, 1, "request")(frame, tree)
            connection = ClientConnection("127.0.0.1:5", "PLAINTEXT")
            dispatcher = Dispatcher(broker.node.broker, REGISTRY)
            assert await dispatcher.handle(connection, memoryview(frame), lambda: None) is not None

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    (refused,) = [each for each in caplog.records if each.message.startswith("refused a transactional producer")]
    text = str(refused.__dict__)
    assert "transaction-ttt" in text
    assert "client-ccc" in text
    assert len(text) < 2_000
