"""Planning of the nodes of `moldau up`."""

import json
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from moldau.cli.console import CommandError
from moldau.cli.data_lock import data_lock
from moldau.cli.up.plan import ClusterPlan, as_toml, check_host, make_plan, voter_count, write_plan
from moldau.cli.up.processes import password_variable
from moldau.settings.broker import get_value
from moldau.settings.sources import build_settings


def plan(
    directory: Path,
    nodes: int = 3,
    port: int | None = None,
    given: Mapping[str, str] | None = None,
    *,
    write_caching: bool = False,
) -> ClusterPlan:
    return make_plan(directory, nodes, port, given or {}, write_caching=write_caching)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


@pytest.fixture
def port() -> int:
    """The first of three that are free, below those that other tests are given by the system."""
    for first in range(20_000 + os.getpid() % 10_000, 32_000, 3):
        with ExitStack() as taken:
            try:
                for number in range(first, first + 3):
                    taken.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
        return first
    raise AssertionError("no three ports are free")


def test_nodes_have_consecutive_ports_and_directories(directory: Path) -> None:
    made = plan(directory)
    assert made.bootstrap == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
    assert [(each.node_id, each.directory.name, each.pid_file.name) for each in made.nodes] == [
        (1, "node-1", "pid"),
        (2, "node-2", "pid"),
        (3, "node-3", "pid"),
    ]
    for node in made.nodes:
        assert node.settings.node_id == node.node_id
        assert node.settings.data_dir == str(node.directory.absolute())
        assert node.settings.cluster_id == made.cluster_id != ""


@pytest.mark.parametrize(
    ("nodes", "voters", "replicas", "in_sync"),
    [(1, 1, 1, 1), (2, 1, 2, 1), (3, 3, 3, 2), (4, 3, 3, 2), (5, 5, 3, 2), (6, 5, 3, 2), (9, 5, 3, 2)],
)
def test_settings_depend_on_the_cluster_size(
    directory: Path, nodes: int, voters: int, replicas: int, in_sync: int
) -> None:
    assert voter_count(nodes) == voters
    for node in plan(directory, nodes).nodes:
        settings = node.settings
        assert [voter.node_id for voter in settings.voters] == list(range(1, voters + 1))
        assert settings.default_replication_factor == replicas
        assert settings.offsets_topic_replication_factor == replicas
        assert settings.transaction_state_log_replication_factor == replicas
        assert settings.transaction_state_log_min_isr == in_sync
        assert settings.topic_defaults.min_insync_replicas == in_sync


def test_records_wait_for_fsync_unless_write_caching_is_requested(directory: Path) -> None:
    for made, expected in (
        (plan(directory), False),
        (plan(directory, write_caching=True), True),
        (plan(directory, given={"write.caching": "true"}), True),
        (plan(directory, given={"write.caching": "false"}, write_caching=True), False),
    ):
        assert {each.settings.topic_defaults.write_caching for each in made.nodes} == {expected}


def test_set_overrides_defaults(directory: Path) -> None:
    made = plan(directory, given={"num.partitions": "7", "min.insync.replicas": "1"})
    assert {each.settings.num_partitions for each in made.nodes} == {7}
    assert {each.settings.topic_defaults.min_insync_replicas for each in made.nodes} == {1}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"node.id": "4"}, "chosen by `moldau up`"),
        ({"listen": "0.0.0.0:1"}, "chosen by `moldau up`"),
        ({"num.partition": "4"}, "num.partitions"),
        ({"num.partitions": "none"}, "num.partitions"),
    ],
)
def test_invalid_settings_create_nothing(directory: Path, given: dict[str, str], why: str) -> None:
    with pytest.raises(CommandError, match=why):
        plan(directory, given=given)
    assert not directory.exists()


def test_a_restarted_cluster_keeps_its_id(directory: Path) -> None:
    first = plan(directory, port=12_000)
    write_plan(directory, first)
    again = plan(directory)
    assert (again.cluster_id, again.bootstrap, again.is_new) == (first.cluster_id, first.bootstrap, False)


def test_a_different_node_count_or_port_is_an_error(directory: Path) -> None:
    write_plan(directory, plan(directory, port=12_000))
    with pytest.raises(CommandError, match=r"a cluster of 3 nodes, not 5: use --nodes 3"):
        plan(directory, 5)
    with pytest.raises(CommandError, match=r"use --port 12000"):
        plan(directory, port=9092)


def test_foreign_directories_are_errors(directory: Path) -> None:
    directory.mkdir()
    (directory / "meta.properties").touch()
    with pytest.raises(CommandError, match="a single node"):
        plan(directory)
    (directory / "meta.properties").unlink()
    (directory / "node-2").mkdir()
    with pytest.raises(CommandError, match=r"node-2 exists, but cluster.json is missing"):
        plan(directory)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"cluster_id": "x", "nodes": 0, "port": 1})])
def test_an_invalid_cluster_file_is_an_error(directory: Path, text: str) -> None:
    directory.mkdir()
    (directory / "cluster.json").write_text(text)
    with pytest.raises(CommandError, match=r"cluster.json is invalid"):
        plan(directory)


def test_ports_above_65535_are_errors(directory: Path) -> None:
    with pytest.raises(CommandError, match="choose a lower --port"):
        plan(directory, port=65_534)


def test_a_port_in_use_is_an_error(directory: Path, port: int) -> None:
    made = plan(directory, port=port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        with pytest.raises(CommandError, match=rf"Port {port + 1} of node 2 is in use"):
            check_host(made)
    assert not directory.exists()


def test_a_running_node_is_detected_by_its_lock(directory: Path, port: int) -> None:
    made = plan(directory, port=port)
    write_plan(directory, made)
    with (
        data_lock(str(directory / "node-3")),
        pytest.raises(CommandError, match=rf"Node 3 is already running: .*process {os.getpid()}"),
    ):
        check_host(made)


def test_a_stale_pid_file_is_only_a_notice(directory: Path, port: int) -> None:
    made = plan(directory, port=port)
    write_plan(directory, made)
    assert check_host(made) == []
    # A process that is there, but is no node.
    made.nodes[1].pid_file.write_text(f"{os.getpid()}\n")
    (note,) = check_host(made)
    assert "node 2 was not shut down cleanly" in note


def test_the_settings_file_has_the_explicit_settings(directory: Path, tmp_path: Path) -> None:
    made = plan(directory, given={"max.connections": "9", "max.connections.per.ip": "8", "broker.rack": 'a "b"'})
    file = tmp_path / "node.toml"
    for node in made.nodes:
        file.write_text(as_toml(node.settings))
        read = build_settings(file=str(file))
        assert read == node.settings
        assert {name: get_value(read, name) for name in read.explicitly_set} == {
            name: get_value(node.settings, name) for name in node.settings.explicitly_set
        }


def test_every_node_has_its_own_http_port(directory: Path) -> None:
    made = make_plan(directory, 3, None, {}, write_caching=False, http_port=8001)
    assert [node.http_address for node in made.nodes] == ["127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8003"]
    assert '"http.port" = 8002' in as_toml(made.nodes[1].settings)
    assert [node.http_address for node in plan(directory).nodes] == [None] * 3


@pytest.mark.parametrize("http_port", [9090, 9092, 9094, 65_534])
def test_http_ports_that_overlap_or_do_not_exist_are_rejected(directory: Path, http_port: int) -> None:
    with pytest.raises(CommandError, match="--http-port"):
        make_plan(directory, 3, 9092, {}, write_caching=False, http_port=http_port)


def test_an_http_port_in_use_is_rejected(directory: Path, port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        http_port = taken.getsockname()[1]
        made = make_plan(directory, 1, port, {}, write_caching=False, http_port=http_port)
        with pytest.raises(CommandError, match=f"Port {http_port} of node 1 is in use.*--http-port"):
            check_host(made)


def test_each_node_has_its_own_schema_in_a_postgres_store(directory: Path) -> None:
    store = "postgresql://user:s3cret@host/db"
    made = make_plan(directory, 2, None, {}, write_caching=False, store=store)
    write_plan(directory, made)
    assert [node.settings.postgres_schema for node in made.nodes] == ["moldau_1", "moldau_2"]
    written = (directory / "node-2" / "node.toml").read_text()
    assert '"store" = "postgresql://user@host/db"' in written
    assert '"postgres.schema" = "moldau_2"' in written
    assert not any("s3cret" in path.read_text() for path in directory.rglob("*") if path.is_file())
    assert password_variable(made.nodes[1].settings) == {"MOLDAU_POSTGRES_PASSWORD": "s3cret"}

    again = make_plan(directory, 2, None, {"postgres.schema": "other"}, write_caching=False)
    assert again.nodes[0].settings.store == "postgresql://user@host/db"
    assert again.nodes[0].settings.postgres_schema == "other_1"
    assert password_variable(again.nodes[0].settings) == {}
    for other in ("postgresql://host/db", "files"):
        with pytest.raises(CommandError, match="which cannot be changed: use --store postgresql://user@host/db"):
            make_plan(directory, 2, None, {}, write_caching=False, store=other)


def test_a_cluster_of_files_stays_one(directory: Path) -> None:
    write_plan(directory, plan(directory))
    with pytest.raises(CommandError, match="has its data in files, which cannot be changed"):
        make_plan(directory, 3, None, {}, write_caching=False, store="postgresql://host/db")
