"""Features that Moldau does not have yet: clients that use them get an error soon, and do not wait or retry forever."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, ShareConsumer

from support.topics import QUIET, Topics, unique

REFUSED_WITHIN_S = 15.0
"""Generous for a busy machine, but below the timeouts of the clients, which are 30 s and more."""
DEADLINE_S = 20.0

pytestmark = pytest.mark.usefixtures("only_moldau")


@contextmanager
def refused_soon() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < REFUSED_WITHIN_S


def settings(bootstrap: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, **QUIET, **{name.replace("_", "."): value for name, value in more.items()}}


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
