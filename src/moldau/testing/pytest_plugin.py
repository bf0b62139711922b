"""Pytest plugin with the fixtures `moldau_broker` and `moldau_cluster`: a fresh broker, or a fresh cluster of three
nodes, for each test.

A mark sets topics and settings: `@pytest.mark.moldau(topics={"orders": 3}, settings={"num.partitions": "2"})`. For a
cluster the mark may also set `nodes=5`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moldau.testing.broker import Broker
    from moldau.testing.cluster import Cluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "moldau(topics, settings, nodes): arguments of moldau_broker or moldau_cluster")


@pytest.fixture
def moldau_broker(request: pytest.FixtureRequest) -> "Iterator[Broker]":
    """A running broker with its records in memory; `.bootstrap` is its address."""
    # Import here, so that test runs without a broker do not load the broker's modules.
    from moldau.testing.broker import Broker

    mark = request.node.get_closest_marker("moldau")
    with Broker(**(mark.kwargs if mark is not None else {})) as broker:
        yield broker


@pytest.fixture
def moldau_cluster(request: pytest.FixtureRequest) -> "Iterator[Cluster]":
    """A running cluster; `.bootstrap` has its addresses, and `kill`, `pause` and `partition` inject faults."""
    from moldau.testing.cluster import Cluster

    mark = request.node.get_closest_marker("moldau")
    with Cluster(**(mark.kwargs if mark is not None else {})) as cluster:
        yield cluster
