"""The broker under test. `MOLDAU_TEST_BOOTSTRAP=host:port` runs behaviour tests against another broker: a test that
fails against Apache Kafka is a wrong test."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings as hypothesis_settings

from moldau.testing import cluster as testing_cluster
from support.broker_process import BrokerProcess, PostgresStore
from support.ports import free_port
from support.postgres import HOW_TO_GET_ONE, PostgresServer, find_servers
from support.topics import Topics

EXTERNAL = os.environ.get("MOLDAU_TEST_BOOTSTRAP")
STORE = os.environ.get("MOLDAU_TEST_STORE", "files")

# Tests assert no speed: on a busy machine any example can take longer than hypothesis allows by default.
hypothesis_settings.register_profile("moldau", deadline=None)
hypothesis_settings.load_profile("moldau")

# Nothing else takes the port of a node of a cluster while the node is down.
testing_cluster._free_ports = lambda count: {node_id: free_port() for node_id in range(1, count + 1)}

# A shell that starts the tests in the background lets them ignore SIGINT, and so the processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the transcripts anew instead of comparing with them")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Takes the many objects of modules and tests out of garbage collections, of which simulations have thousands."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the broker that all tests of a run share: a `moldau serve` process, or another broker."""
    if EXTERNAL:
        yield EXTERNAL
        return
    settings = ["--group-initial-rebalance-delay-ms", "0"]
    # Many records have old timestamps. A check of the retention, every five minutes, would delete them during a test.
    settings += ["--log-retention-check-interval-ms", "86400000"]
    if STORE != "postgres":
        settings += ["--store", STORE]
    with BrokerProcess(tmp_path_factory.mktemp("shared") / "data", *settings) as served:
        yield served.bootstrap


@pytest.fixture(scope="session")
def topics(bootstrap: str) -> Topics:
    return Topics(bootstrap)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A Postgres server that all tests of a process share: MOLDAU_TEST_POSTGRES selects the major version, otherwise
    it is the newest one on this machine. Each test takes a schema or a database of its own."""
    servers = find_servers()
    version = os.environ.get("MOLDAU_TEST_POSTGRES") or max(servers, key=int, default="")
    if version not in servers:
        pytest.skip(HOW_TO_GET_ONE)
    with PostgresServer(servers[version]) as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def postgres_store(request: pytest.FixtureRequest) -> None:
    """Gives the nodes of all tests a Postgres store, with MOLDAU_TEST_STORE=postgres."""
    if STORE == "postgres":
        PostgresStore.url = request.getfixturevalue("postgres").url


@pytest.fixture(scope="session")
def against_kafka() -> bool:
    """Whether the run is against another broker than Moldau."""
    return EXTERNAL is not None


@pytest.fixture(scope="session")
def only_files() -> None:
    """For tests of segments and other files, which a node on Postgres does not have."""
    if STORE == "postgres":
        pytest.skip("needs files; MOLDAU_TEST_STORE names another store")


@pytest.fixture(scope="session")
def only_moldau() -> None:
    """For tests that start, stop or inspect a Moldau process."""
    if EXTERNAL:
        pytest.skip("needs Moldau's own process; MOLDAU_TEST_BOOTSTRAP names another broker")
