"""Raw requests whose responses must be those of Apache Kafka.

`make test` runs these tests against Moldau, `make interop` runs the same tests against Apache Kafka.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from apache_kafka import ApacheKafka
from broker_under_test import AGAINST_KAFKA, Broker, broker

from support.topics import Topics
from support.wire import WireClient

StartNode = Callable[[Mapping[str, str]], Broker]


@pytest.fixture(scope="session", autouse=True)
def _kafka_is_available() -> None:
    reason = ApacheKafka.available() if AGAINST_KAFKA else None
    if reason is not None:
        pytest.skip(f"Apache Kafka is not available: {reason}")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A node that all tests share."""
    with broker(tmp_path_factory.mktemp("wire") / "data") as started:
        yield started


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Starts nodes with their own settings, by the names that Kafka and Moldau share."""
    with ExitStack() as started:
        directories = (tmp_path / f"node-{number}" for number in range(100))
        yield lambda settings: started.enter_context(broker(next(directories), settings=settings))


@pytest.fixture
def client(node: Broker) -> Iterator[WireClient]:
    """A connection to the shared node."""
    connected = WireClient(node.bootstrap)
    yield connected
    connected.close()


@pytest.fixture
def topics(node: Broker) -> Topics:
    return Topics(node.bootstrap)
