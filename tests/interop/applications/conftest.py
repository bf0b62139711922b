"""Clusters for applications, shared by all tests; a node that a test kills is restarted for the next test."""

from collections.abc import Iterator

import pytest
from apache_kafka import available

from applications.cluster_under_test import ClusterUnderTest, cluster_under_test


@pytest.fixture(scope="package", params=["three nodes", "five nodes, one dead"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka's applications are not there: {reason}")
    count, dead = (3, frozenset[int]()) if request.param == "three nodes" else (5, frozenset({5}))
    with cluster_under_test(tmp_path_factory.mktemp("applications"), count, dead) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ClusterUnderTest) -> ClusterUnderTest:
    running.restore()
    return running
