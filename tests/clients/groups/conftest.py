"""A broker whose groups are quick, and each client library in turn as the one under test."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka_members import Aiokafka
from confluent_kafka.admin import AdminClient, ConfigResource
from confluent_members import Confluent
from group_member import DEADLINE_S, Admin, Library
from group_observer import Observer
from group_under_test import Group
from kafka_python_members import KafkaPython

from support.broker_process import BrokerProcess
from support.topics import QUIET, Topics

QUICK_GROUPS = ("--group-initial-rebalance-delay-ms", "0", "--group-min-session-timeout-ms", "1")
"""Nobody waits for members that will not come, and a member may be given up for dead soon."""
SHORT_SESSION_MS = 1000


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    external = os.environ.get("MOLDAU_TEST_BOOTSTRAP")
    if external:
        yield external
        return
    with BrokerProcess(tmp_path_factory.mktemp("groups") / "data", *QUICK_GROUPS) as served:
        yield served.bootstrap


@pytest.fixture(scope="session")
def topics(bootstrap: str) -> Topics:
    return Topics(bootstrap)


@pytest.fixture
def restartable(tmp_path: Path, only_moldau: None) -> Iterator[BrokerProcess]:
    """A broker of the test's own, to stop and start."""
    with BrokerProcess(tmp_path / "data", *QUICK_GROUPS) as served:
        yield served


@pytest.fixture(scope="session")
def short_session_ms(bootstrap: str) -> int:
    """The shortest session that tests use: they wait for its end. A broker may allow only longer ones."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    (node,) = admin.describe_cluster().result(DEADLINE_S).nodes
    wanted = ConfigResource(ConfigResource.Type.BROKER, str(node.id))
    found = admin.describe_configs([wanted])[wanted].result(DEADLINE_S)
    return max(SHORT_SESSION_MS, int(found["group.min.session.timeout.ms"].value))


@pytest.fixture(scope="session")
def confluent() -> Library:
    return Confluent()


@pytest.fixture(scope="session")
def kafka_python() -> Library:
    return KafkaPython()


@pytest.fixture(scope="session")
def aiokafka() -> Iterator[Library]:
    library = Aiokafka()
    yield library
    library.close()


@pytest.fixture(params=["confluent", "kafka_python", "aiokafka"])
def library(request: pytest.FixtureRequest) -> Library:
    found: Library = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def group(bootstrap: str, library: Library) -> Iterator[Group]:
    with Group(bootstrap, library) as found:
        yield found


@pytest.fixture
def confluent_group(bootstrap: str, confluent: Library) -> Iterator[Group]:
    with Group(bootstrap, confluent) as found:
        yield found


@pytest.fixture
def admin(bootstrap: str, library: Library) -> Iterator[Admin]:
    found = library.admin(bootstrap)
    yield found
    found.close()


@pytest.fixture
def observer(bootstrap: str) -> Iterator[Observer]:
    found = Observer(bootstrap)
    yield found
    found.close()
