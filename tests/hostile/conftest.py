"""Whatever is done to the broker here, a witness on another connection keeps working: before, meanwhile and after."""

from collections.abc import Iterator

import pytest

from support.topics import Topics
from support.wire import Wire
from support.witness import Witness


@pytest.fixture(scope="session")
def the_witness(bootstrap: str, topics: Topics) -> Iterator[Witness]:
    witness = Witness(bootstrap, topics.create())
    yield witness
    witness.wire.close()


@pytest.fixture(autouse=True)
def witness(request: pytest.FixtureRequest) -> Iterator[Witness | None]:
    """Checked around every test that has a broker."""
    if "bootstrap" not in request.fixturenames:
        yield None
        return
    found: Witness = request.getfixturevalue("the_witness")
    assert found.works()
    yield found
    assert found.works()


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection
