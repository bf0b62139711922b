"""Apache Kafka's own tools, from its published artifacts, as the judge of Moldau's files and answers."""

from collections.abc import Iterator

import pytest
from apache_kafka import available
from command_line import Tools

from support.served import Served


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka's tools are not there: {reason}")
    return Tools(tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="session")
def node(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node on files that the tests of a run share."""
    with Served(tmp_path_factory.mktemp("interop") / "data") as served:
        yield served
