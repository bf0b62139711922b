"""Features that Moldau does not have yet: clients that use them get an error soon, and do not wait or retry forever."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import errors as aiokafka_errors
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, ShareConsumer
from kafka import KafkaAdminClient, KafkaProducer
from kafka import errors as kafka_errors

from support.topics import QUIET, Topics, unique

REFUSED_WITHIN_S = 5.0
DEADLINE_S = 20.0

pytestmark = pytest.mark.usefixtures("only_moldau")


@contextmanager
def refused_soon() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < REFUSED_WITHIN_S


def settings(bootstrap: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, **QUIET, **{name.replace("_", "."): value for name, value in more.items()}}


def test_confluent_kafka_gets_a_fatal_error_for_a_transactional_producer(bootstrap: str) -> None:
    producer = Producer(settings(bootstrap, transactional_id=unique("tx")))
    with refused_soon(), pytest.raises(KafkaException) as refused:
        producer.init_transactions(DEADLINE_S)
    error: KafkaError = refused.value.args[0]
    assert error.fatal()
    assert error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_kafka_python_gets_an_error_for_a_transactional_producer(bootstrap: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=unique("tx"), max_block_ms=int(DEADLINE_S * 1000)
    )
    with refused_soon(), pytest.raises(kafka_errors.TransactionalIdAuthorizationFailedError):
        producer.init_transactions()
    producer.close(timeout=0)


def test_aiokafka_gets_an_error_for_a_transactional_producer(bootstrap: str) -> None:
    async def scenario() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=unique("tx"))
        try:
            with refused_soon(), pytest.raises(aiokafka_errors.TransactionalIdAuthorizationFailed):
                await asyncio.wait_for(producer.start(), DEADLINE_S)
        finally:
            await producer.stop()

    asyncio.run(scenario())


def poll_until_error(poll: Callable[[], KafkaError | None]) -> KafkaError:
    """Polls until an error is returned or raised."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            error = poll()
        except KafkaException as raised:
            error = raised.args[0]
        if error is not None:
            return error
    raise AssertionError("the client got no error")


def test_confluent_kafka_gets_a_fatal_error_for_the_consumer_group_protocol(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    consumer = Consumer(settings(bootstrap, group_id=unique("group"), group_protocol="consumer"))
    consumer.subscribe([topic])

    def poll() -> KafkaError | None:
        message = consumer.poll(0.1)
        return None if message is None else message.error()

    with refused_soon():
        error = poll_until_error(poll)
        consumer.close()
    assert error.code() == KafkaError._FATAL
    assert "ConsumerGroupHeartbeat" in str(error)
    assert "API version not supported" in str(error)


def test_confluent_kafka_gets_a_fatal_error_for_a_share_group(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    consumer = ShareConsumer(settings(bootstrap, group_id=unique("group")))
    consumer.subscribe([topic])

    def poll() -> KafkaError | None:
        errors = [message.error() for message in consumer.poll(0.1) or ()]
        return errors[0] if errors else None

    with refused_soon():
        error = poll_until_error(poll)
        consumer.close()
    assert error.fatal()
    assert error.code() == KafkaError.UNSUPPORTED_VERSION


@pytest.mark.parametrize("method", ["list_transactions", "describe_transactions"])
def test_kafka_python_gets_an_error_for_transactions_of_an_admin_client(bootstrap: str, method: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    arguments = [] if method == "list_transactions" else [["tx"]]
    try:
        with refused_soon(), pytest.raises(kafka_errors.IncompatibleBrokerVersion):
            getattr(admin, method)(*arguments)
    finally:
        admin.close()
