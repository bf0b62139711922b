"""A pytest plugin that comes with Moldau: the fixture `moldau_broker`, a fresh broker for each test that
asks for it.

Topics are given with a mark: `@pytest.mark.moldau(topics={"orders": 3}, settings={"num.partitions": "2"})`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moldau.testing.broker import Broker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "moldau(topics, settings): what the broker of the moldau_broker fixture is started with"
    )


@pytest.fixture
def moldau_broker(request: pytest.FixtureRequest) -> "Iterator[Broker]":
    """A running broker with its records in memory; `.bootstrap` is its address."""
    # Imported here, so that test runs which never ask for a broker do not pay for it.
    from moldau.testing.broker import Broker

    mark = request.node.get_closest_marker("moldau")
    with Broker(**(mark.kwargs if mark is not None else {})) as broker:
        yield broker
