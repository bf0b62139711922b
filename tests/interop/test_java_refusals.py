"""Java clients that use a feature which the broker does not support get an exception at once. Apache Kafka runs without
these features, too."""

import time
from collections.abc import Iterator

import pytest
from broker_under_test import Broker, broker
from java_clients import JavaClients, JavaError

from support.topics import Topics, unique

REFUSED_WITHIN_S = 15.0
"""Generous for a busy machine, but below the 20 s for which a client tries, and below its timeouts."""
UNSUPPORTED = "UnsupportedVersionException"
GROUP_FEATURES = {
    "consumer group": "set group.protocol=classic",
    "share group": "share group protocol",
    "describe share group": "",
    "describe streams group": "",
}
TRANSACTION_FEATURES = ("transactional producer", "fence producer", "list transactions")


@pytest.fixture(scope="module")
def node(jvm: JavaClients, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    features = ("group.version=0", "share.version=0", "streams.version=0")
    with broker(tmp_path_factory.mktemp("refusals") / "data", kafka_features=features) as started:
        yield started


def use(java: JavaClients, node: Broker, feature: str) -> JavaError:
    """Uses the feature and returns the exception, which must come soon."""
    topic = Topics(node.bootstrap).create()
    start = time.monotonic()
    with pytest.raises(JavaError) as raised:
        java.execute(
            "useUnsupported", bootstrap=node.bootstrap, topic=topic, identifier=unique(), feature=feature, timeout_s=40
        )
    assert time.monotonic() - start < REFUSED_WITHIN_S
    return raised.value


@pytest.mark.parametrize(("feature", "message"), GROUP_FEATURES.items())
def test_a_group_protocol_is_refused(java: JavaClients, node: Broker, feature: str, message: str) -> None:
    error = use(java, node, feature)
    assert error.name == UNSUPPORTED
    assert message.lower() in str(error).lower()


@pytest.mark.parametrize("feature", TRANSACTION_FEATURES)
def test_transactions_are_served(java: JavaClients, node: Broker, feature: str) -> None:
    java.execute(
        "useUnsupported", bootstrap=node.bootstrap, topic="", identifier=unique(), feature=feature, timeout_s=40
    )


def test_an_unknown_transaction_is_not_described(java: JavaClients, node: Broker) -> None:
    assert use(java, node, "describe transaction").name == "TransactionalIdNotFoundException"


def test_classic_groups_are_described_without_the_newer_protocol(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(), unique("group")
    consumer = java.consumer(node.bootstrap, "classic", topic, group_id=group)
    java.wait_until(lambda: bool(consumer.owned), "the consumer has no partition")
    description = java.admin(node.bootstrap, "describeGroup", group=group)
    assert (description["state"], description["type"]) == ("Stable", "Classic")
