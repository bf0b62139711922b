"""A node with an HTTP server that the tests of a module share."""

from collections.abc import Iterator

import pytest

from support.broker_process import BrokerProcess
from support.http_node import HttpNode


@pytest.fixture(scope="module")
def node(only_moldau: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpNode]:
    arguments = ("--http-port", "0", "--http-request-max-bytes", "2000000", "--cluster-secret", "s3cret")
    with BrokerProcess(tmp_path_factory.mktemp("http") / "data", *arguments) as process:
        node = HttpNode(process)
        with node.client:
            yield node
        # No request of these tests may fail with an unexpected error.
        assert "Traceback" not in process.output()
