"""Every metric of the alert rules and of the dashboard exists in what a real cluster shows."""

import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from moldau.observe.alert_rules import ALERT_RULES
from moldau.observe.dashboard import ROWS, expressions
from moldau.testing.cluster import Cluster
from support.prometheus import wait_until

METRIC = re.compile(r"\b(?:kafka|moldau|process)_[a-z0-9_]+\b|\bup\b")
LABELS = re.compile(r"\{([^}]*)\}|(?:by|on) \(([^)]*)\)")


def metrics_in(expression: str) -> set[str]:
    return set(METRIC.findall(re.sub(r"\{[^}]*\}|\"[^\"]*\"", "", expression)))


def labels_in(expression: str) -> set[str]:
    found = {match[1] if match[1] is not None else match[2] for match in LABELS.finditer(expression)}
    return {re.split(r"[=!]", part.strip())[0] for each in found for part in each.split(",")} - {""}


@pytest.fixture(scope="module")
def shown() -> Iterator[Callable[[], tuple[set[str], set[str]]]]:
    """Returns the names and labels of the samples of two nodes, with a group that has committed."""
    settings = {"http.port": "0", "lag.sample.interval.ms": "100", "group.initial.rebalance.delay.ms": "0"}
    with Cluster(2, topics={"orders": 2}, settings=settings) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce("orders", b"tea", partition=0)
        assert producer.flush(30) == 0
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "billing"})
        consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
        consumer.close()

        def scrape() -> tuple[set[str], set[str]]:
            samples = [
                sample
                for node in cluster.nodes.values()
                for family in text_string_to_metric_families(
                    httpx.get(f"http://{node.http_address}/metrics", timeout=60).text
                )
                for sample in family.samples
            ]
            return {each.name for each in samples}, {label for each in samples for label in each.labels}

        yield scrape


def test_names_and_labels_exist_in_a_real_cluster(shown: Callable[[], tuple[set[str], set[str]]]) -> None:
    used = [*(each.expression for each in ALERT_RULES), *expressions(ROWS)]
    # Prometheus adds these.
    names = set().union(*map(metrics_in, used)) - {"up"}
    labels = set().union(*map(labels_in, used)) - {"cluster", "instance", "job"}
    assert len(names) > 50
    assert {"le", "topic", "consumergroup", "group", "state", "replica", "broker"} <= labels

    def missing() -> set[str]:
        known_names, known_labels = shown()
        return (names - known_names) | (labels - known_labels)

    # Groups are sampled in the background.
    try:
        wait_until(lambda: not missing(), "all metrics are shown", 30)
    except TimeoutError:
        pytest.fail(f"not shown: {sorted(missing())}")


def test_names_are_found_in_expressions() -> None:
    expression = 'sum by (a, b) (rate(kafka_x_total{topic!="",c=~"moldau_y"}[5m])) / on (d) up == 0'
    assert metrics_in(expression) == {"kafka_x_total", "up"}
    assert labels_in(expression) == {"a", "b", "c", "d", "topic"}
