"""Nodes on Postgres, each with a schema of its own: a node that cannot reach its database gives up its leadership, and
rejoins when it can. A schema has one owner."""

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from moldau.testing.simulation.checkers.history import History
from moldau.testing.simulation.checkers.records import check_records
from support.broker_process import BrokerProcess, clean_environment
from support.broker_process_cluster import BrokerProcessCluster
from support.checked_producer import DEADLINE_S, check_log, idempotent_producer, produce, read_all
from support.log_reader import all_records
from support.ports import free_ports
from support.postgres import PostgresServer
from support.steady_writer import SteadyWriter
from support.tcp_proxy import TcpProxy
from support.topics import Topics, unique

PARTITIONS = 6

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("only_moldau")]


def url_through(proxy: TcpProxy, server: PostgresServer) -> str:
    return server.url.replace(f":{server.port}/", f":{proxy.port}/")


@pytest.mark.parametrize("fault", ["cut", "stall"])
def test_a_node_without_its_database_gives_up_leadership(postgres: PostgresServer, tmp_path: Path, fault: str) -> None:
    history = History()
    with ExitStack() as stack:
        proxies = {node_id: stack.enter_context(TcpProxy(postgres.port)) for node_id in (1, 2, 3)}
        prefix = unique("cluster").replace("-", "_")
        cluster = BrokerProcessCluster(
            tmp_path,
            node_settings={
                node_id: {"store": url_through(proxy, postgres), "postgres.schema": f"{prefix}_{node_id}"}
                for node_id, proxy in proxies.items()
            },
        )
        stack.enter_context(cluster)
        cluster.create_topic("orders", partitions=PARTITIONS)
        cluster.wait_in_sync("orders")
        writer = SteadyWriter(cluster.bootstrap, "orders", PARTITIONS, history)
        writer.wait_resumed(range(PARTITIONS), time.monotonic())
        victim = cluster.leader_of("orders")
        getattr(proxies[victim], fault)()
        cluster.wait_until(
            lambda: victim not in {each.leader for each in cluster.metadata().topics["orders"].partitions.values()},
            "others lead all partitions",
        )
        writer.wait_resumed(range(PARTITIONS), time.monotonic())
        proxies[victim].restore()
        cluster.wait_in_sync("orders")
        writer.wait_resumed(range(PARTITIONS), time.monotonic())
        writer.finish()
        for node in cluster.nodes.values():
            assert node.process is not None
            assert node.process.poll() is None, node.output()
        for record in all_records(cluster.bootstrap, "orders"):
            history.logs.setdefault(("orders", record.partition), []).append(  # type: ignore[attr-defined]
                (record.offset, record.value or b"")
            )
    assert check_records(history) == []
    assert not writer.failures


def test_a_node_that_lost_its_schema_to_another_process_stops(postgres: PostgresServer, tmp_path: Path) -> None:
    """The old node cannot reach the database, and a new one is started on another machine. What the old one has
    acknowledged is there, and nothing that it had in memory comes later."""
    schema = ("--postgres-schema", unique("taken").replace("-", "_"))
    with (
        TcpProxy(postgres.port) as proxy,
        BrokerProcess(tmp_path / "old", "--store", url_through(proxy, postgres), *schema) as old,
    ):
        topic = Topics(old.bootstrap).create(partitions=3)
        sender = idempotent_producer(old.bootstrap)
        produce(topic, (sender,), 0.3)
        proxy.cut()
        sender.send(topic, 200)
        with BrokerProcess(tmp_path / "new", "--store", postgres.url, *schema) as new:
            found = read_all(new.bootstrap, topic)
            check_log(found, sender)
            proxy.restore()
            assert old.process is not None
            assert old.process.wait(DEADLINE_S) == 1
            assert "another process owns the schema" in old.output()
            sender.producer.poll(0)
            assert read_all(new.bootstrap, topic) == found
            check_log(found, sender)


def test_a_second_process_does_not_start_on_the_same_schema(postgres: PostgresServer, tmp_path: Path) -> None:
    settings = ("--store", postgres.url, "--postgres-schema", unique("shared").replace("-", "_"))
    with BrokerProcess(tmp_path / "first", *settings) as first:
        second = BrokerProcess(tmp_path / "second", *settings)
        second.spawn()
        assert second.process is not None
        try:
            assert second.process.wait(60) == 1
        finally:
            second.process.kill()
        assert "another process uses the schema" in second.output()
        Topics(first.bootstrap).create()


def test_moldau_up_gives_each_node_a_schema(postgres: PostgresServer, tmp_path: Path) -> None:
    schema = unique("up").replace("-", "_")
    port = free_ports(3)
    command = [sys.executable, "-m", "moldau", "up", "--nodes", "3", "--port", str(port)]
    command += ["--data-dir", str(tmp_path / "up"), "--store", postgres.url, "--set", f"postgres.schema={schema}"]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=clean_environment())
    try:
        deadline = time.monotonic() + 60
        while "The cluster is up" not in (tmp_path / "out").read_text():
            assert process.poll() is None, (tmp_path / "out").read_text()
            assert time.monotonic() < deadline, (tmp_path / "out").read_text()
            time.sleep(0.05)
        Topics(f"127.0.0.1:{port}").create()
        with psycopg.connect(postgres.url) as connection:
            found = connection.execute("select nspname from pg_namespace where nspname like %s", (f"{schema}_%",))
            assert sorted(name for (name,) in found) == [f"{schema}_1", f"{schema}_2", f"{schema}_3"]
        assert not list((tmp_path / "up").glob("node-*/meta.properties"))
    finally:
        process.terminate()
        assert process.wait(60) == 0
