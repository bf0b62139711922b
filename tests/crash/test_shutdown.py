"""SIGTERM and SIGINT: requests in flight complete, logs are closed, and the next start needs no recovery."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from support.broker_process import BrokerProcess, clean_environment
from support.checked_producer import check_log, idempotent_producer, read_all
from support.checked_producer import produce as produce_with
from support.topics import QUIET, Topics
from support.wire import FETCH, METADATA, WireClient, batch, end_offset, fetch, fetch_tree, produce

CLEAN = ".kafka_cleanshutdown"
pytestmark = pytest.mark.usefixtures("only_moldau")


@pytest.mark.usefixtures("only_files")
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT], ids=lambda by: by.name)
def test_a_node_shuts_down_cleanly_on_a_signal(tmp_path: Path, by: signal.Signals) -> None:
    with BrokerProcess(tmp_path / "data") as served:
        topic = Topics(served.bootstrap).create()
        with WireClient(served.bootstrap) as wire:
            assert produce(wire, topic, batch([b"a", b"b"])) == (0, 0)
        assert not (served.data_dir / CLEAN).exists(), "the clean-shutdown marker must not exist while the node runs"
        assert served.stop(by) == 0
        assert (served.data_dir / CLEAN).exists()
        served.start()
        with WireClient(served.bootstrap) as wire:
            assert end_offset(wire, topic) == 2
            assert produce(wire, topic, batch()) == (0, 2)


def flip_last_byte(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[-1] ^= 0xFF
    log.write_bytes(data)


@pytest.mark.usefixtures("only_files")
def test_a_clean_start_does_not_scan_the_logs(tmp_path: Path) -> None:
    """Corruption that only a scan would find goes unnoticed, which shows that a clean start does not scan."""
    with BrokerProcess(tmp_path / "data") as served:
        topic = Topics(served.bootstrap).create()
        with WireClient(served.bootstrap) as wire:
            assert produce(wire, topic, batch([b"a"])) == (0, 0)
            assert produce(wire, topic, batch([b"b"])) == (0, 1)
        served.stop()
        flip_last_byte(served.data_dir / f"{topic}-0" / "00000000000000000000.log")
        served.start()
        with WireClient(served.bootstrap) as wire:
            assert end_offset(wire, topic) == 2


@pytest.mark.usefixtures("only_files")
def test_a_torn_tail_is_truncated_after_a_crash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as served:
        topic = Topics(served.bootstrap).create()
        with WireClient(served.bootstrap) as wire:
            assert produce(wire, topic, batch([b"a", b"b"])) == (0, 0)
        served.kill()
        assert not (served.data_dir / CLEAN).exists()
        with (served.data_dir / f"{topic}-0" / "00000000000000000000.log").open("ab") as log:
            log.write(batch([b"torn"], base_offset=2)[:-3])
        served.start()
        with WireClient(served.bootstrap) as wire:
            assert end_offset(wire, topic) == 2
            assert produce(wire, topic, batch([b"c"])) == (0, 2)
            assert b"c" in fetch(wire, topic, 2)["records"]


def test_pending_requests_are_completed_or_closed_at_shutdown(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as served:
        topic = Topics(served.bootstrap).create()
        with WireClient(served.bootstrap) as waiting, WireClient(served.bootstrap) as idle:
            idle.request(METADATA, 1, {"topics": []})
            waiting.send(FETCH, 12, fetch_tree(topic, 0, max_wait=60_000))
            waiting.send(METADATA, 1, {"topics": []})
            assert served.stop() == 0
            assert idle.is_closed()
            while waiting.socket.recv(1 << 16):
                pass


def test_an_idempotent_producer_survives_clean_restarts_without_loss_or_duplicates(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as served:
        topic = Topics(served.bootstrap).create(partitions=3)
        senders = (idempotent_producer(served.bootstrap),)
        for _ in range(5):
            produce_with(topic, senders, 0.1)
            served.restart()
        (sender,) = senders
        assert sender.producer.flush(30) == 0
        assert not sender.failed
        found = read_all(served.bootstrap, topic)
        check_log(found, sender)
        assert len(found) == sender.sent


def test_a_client_sees_its_connection_close_at_shutdown(tmp_path: Path) -> None:
    errors: list[int] = []
    with BrokerProcess(tmp_path / "data") as served:
        topic = Topics(served.bootstrap).create()
        producer = Producer(
            {"bootstrap.servers": served.bootstrap, "message.timeout.ms": 1000, **QUIET}
            | {"error_cb": lambda error: errors.append(error.code())}
        )
        producer.produce(topic, b"before")
        assert producer.flush(10) == 0
        served.stop()
        failed: list[int] = []
        producer.produce(topic, b"after", on_delivery=lambda error, _: failed.append(error.code()))
        assert producer.flush(10) == 0
    assert failed == [KafkaError._MSG_TIMED_OUT]
    assert set(errors) <= {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}


def test_two_nodes_cannot_share_a_data_directory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as served:
        second = BrokerProcess(tmp_path / "data")
        with pytest.raises(RuntimeError, match="before it was ready") as refused:
            second.start()
        assert "Traceback" not in str(refused.value)
        with WireClient(served.bootstrap) as wire:
            assert wire.request(METADATA, 1, {"topics": []})["topics"] == []


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as served:
        command = [sys.executable, "-m", "moldau", "serve", "--listen", served.bootstrap]
        done = subprocess.run(
            [*command, "--data-dir", str(tmp_path / "other")], capture_output=True, timeout=20, env=clean_environment()
        )
        printed = (done.stdout + done.stderr).decode()
        assert done.returncode != 0
        assert str(served.port) in printed
        assert "Traceback" not in printed


def test_port_zero_picks_a_free_port_and_logs_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", port=0) as served:
        assert served.port != 0
        with WireClient(served.bootstrap) as wire:
            (broker,) = wire.request(METADATA, 1, {"topics": []})["brokers"]
            assert f"{broker['host']}:{broker['port']}" == served.bootstrap


@pytest.mark.usefixtures("only_files")
def test_the_logs_of_a_clean_run_pass_verification(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as served:
        topic = Topics(served.bootstrap).create()
        with WireClient(served.bootstrap) as wire:
            for _ in range(10):
                produce(wire, topic, batch([b"x"] * 10))
        served.stop()
        command = [sys.executable, "-m", "moldau", "log", "verify", str(served.data_dir)]
        done = subprocess.run(command, capture_output=True, timeout=20, env=clean_environment())
        assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_json_logs_are_json_lines(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--log-format", "json") as served:
        served.stop()
        lines = [line for line in served.output().splitlines() if line.startswith("{")]
        assert len(lines) >= 2
        assert all("message" in json.loads(line) or "event" in json.loads(line) for line in lines)
