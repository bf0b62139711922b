"""Whatever is done to the broker here, a witness on another connection keeps working: before, meanwhile and after."""

from collections.abc import Iterator

import pytest

from support.topics import Topics
from support.wire import Wire
from support.witness import Witness


@pytest.fixture(scope="session")
def witness_topic(topics: Topics) -> str:
    return topics.create()


@pytest.fixture(autouse=True)
def witness(request: pytest.FixtureRequest) -> Iterator[Witness | None]:
    """Checked around every test that has a broker."""
    if "bootstrap" not in request.fixturenames:
        yield None
        return
    bootstrap: str = request.getfixturevalue("bootstrap")
    found = Witness(bootstrap, request.getfixturevalue("witness_topic"))
    assert found.works()
    yield found
    assert found.works()
    found.wire.close()


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection
