"""A witness on another connection checks before and after every test that the broker still works."""

from collections.abc import Iterator

import pytest

from support.healthy_client import HealthyClient
from support.topics import Topics
from support.wire import WireClient


@pytest.fixture(scope="session")
def witness_topic(topics: Topics) -> str:
    return topics.create()


@pytest.fixture(autouse=True)
def witness(request: pytest.FixtureRequest) -> Iterator[HealthyClient | None]:
    """Checked around every test that has a broker."""
    if "bootstrap" not in request.fixturenames:
        yield None
        return
    bootstrap: str = request.getfixturevalue("bootstrap")
    found = HealthyClient(bootstrap, request.getfixturevalue("witness_topic"))
    assert found.check()
    yield found
    assert found.check()
    found.wire.close()


@pytest.fixture
def wire(bootstrap: str) -> Iterator[WireClient]:
    with WireClient(bootstrap) as connection:
        yield connection
