"""`/metrics`: known loads give known values, each series comes from one node, and Prometheus' parser reads all."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from moldau.broker_lifecycle.state import BrokerState
from moldau.http import node_metrics
from moldau.testing import Broker
from moldau.testing.cluster import Cluster
from support.http_connection import RawConnection
from support.wire import WireClient, batch
from support.wire import produce as produce_raw

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
RECORDS = 25


def scrape(address: str | None) -> Series:
    response = httpx.get(f"http://{address}/metrics", timeout=60)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = [
        ((sample.name, tuple(sorted(sample.labels.items()))), sample.value)
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    ]
    duplicates = [key for key, count in Counter(key for key, _ in found).items() if count > 1]
    assert not duplicates
    return dict(found)


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, tuple(sorted(labels.items()))]


def total(nodes: Iterable[Series], name: str) -> float:
    return sum(value for series in nodes for (each, _), value in series.items() if each == name)


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def produce(bootstrap: str, topic: str, partition: int = 0, acks: str = "all") -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks, "linger.ms": 100})
    for _ in range(RECORDS):
        producer.produce(topic, b"v" * 100, partition=partition)
    assert producer.flush(30) == 0


def consume(bootstrap: str, topic: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": "metrics", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    assert len(consumer.consume(RECORDS, 30)) == RECORDS
    consumer.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"http.port": "0", "group.initial.rebalance.delay.ms": "0", "lag.sample.interval.ms": "1000"}
    with Broker({"orders": 2}, settings) as broker:
        yield broker


def test_a_known_load_gives_known_values(broker: Broker) -> None:
    produce(broker.bootstrap, "orders", 1)
    consume(broker.bootstrap, "orders")
    series = scrape(broker.node.http_address)
    assert value(series, "kafka_topic_partition_current_offset", topic="orders", partition="1") == RECORDS
    assert value(series, "kafka_topic_partition_current_offset", topic="orders", partition="0") == 0
    assert value(series, "kafka_topic_partition_oldest_offset", topic="orders", partition="1") == 0
    assert value(series, "kafka_topic_partition_leader", topic="orders", partition="1") == 1
    assert value(series, "kafka_topic_partition_in_sync_replica", topic="orders", partition="1") == 1
    assert value(series, "kafka_topic_partition_under_replicated_partition", topic="orders", partition="1") == 0
    assert value(series, "kafka_topic_partitions", topic="orders") == 2
    assert value(series, "kafka_log_log_size", topic="orders", partition="1") > RECORDS * 100
    assert value(series, "kafka_server_brokertopicmetrics_messagesin_total", topic="orders") == RECORDS
    size = value(series, "kafka_server_brokertopicmetrics_bytesin_total", topic="orders")
    assert size > RECORDS * 100
    assert value(series, "kafka_server_brokertopicmetrics_bytesout_total", topic="orders") >= size
    assert value(series, "kafka_brokers") == 1
    assert value(series, "kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert value(series, "kafka_controller_kafkacontroller_offlinepartitionscount") == 0
    assert value(series, "kafka_server_raftmetrics_current_state", current_state="leader") == 1
    assert value(series, "moldau_broker_lease_valid") == 1
    assert value(series, "moldau_request_duration_seconds_count", request="Produce") >= 1
    assert value(series, "kafka_network_requestmetrics_totaltimems", request="Produce", quantile="0.99") > 0
    assert value(series, "kafka_server_kafkaserver_brokerstate") == 3
    updates = value(series, "moldau_partition_high_watermark_updates_total", topic="orders", partition="1")
    assert 1 <= updates <= RECORDS
    assert value(series, "moldau_partition_high_watermark_updates_total", topic="orders", partition="0") == 0


def test_every_state_of_a_broker_has_a_number() -> None:
    assert node_metrics._KAFKA_STATES.keys() == set(BrokerState)


def test_connections_are_counted_by_listener() -> None:
    with Broker(settings={"http.port": "0"}) as broker:

        def counts() -> list[float]:
            series = scrape(broker.node.http_address)
            prefix = "kafka_server_socket_server_metrics_connection"
            names = ("count", "creation_total", "close_total")
            return [value(series, f"{prefix}_{each}", listener="PLAINTEXT") for each in names]

        with WireClient(broker.bootstrap), WireClient(broker.bootstrap):
            wait_for(lambda: counts()[0] == 2)
        wait_for(lambda: counts()[0] == 0)
        _, opened, closed = counts()
        assert opened == closed >= 2


def test_requests_in_flight_and_their_memory_are_shown(broker: Broker) -> None:
    """A Fetch that waits for records is in flight."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "waits", "fetch.wait.max.ms": 5_000})
    consumer.assign([TopicPartition("orders", 0, 0)])
    consumer.poll(0.1)
    wait_for(lambda: value(scrape(broker.node.http_address), "moldau_network_requests_in_flight") == 1)
    consumer.close()
    wait_for(lambda: value(scrape(broker.node.http_address), "moldau_network_requests_in_flight") == 0)
    pool = broker.node._limits[0]
    pool.reserve(1_000)
    series = scrape(broker.node.http_address)
    pool.release(1_000)
    assert value(series, "kafka_network_socketserver_memorypoolused") == 1_000
    limit = value(series, "kafka_network_socketserver_memorypoolavailable") + 1_000
    assert limit == broker.node.broker.settings.static.queued_max_request_bytes // 2
    assert value(series, "kafka_network_requestchannel_requestqueuesize") == 0


def test_process_event_loop_and_quorum_are_shown(broker: Broker) -> None:
    series = scrape(broker.node.http_address)
    assert 0 < value(series, "process_resident_memory_bytes") < value(series, "process_virtual_memory_bytes")
    assert abs(value(series, "process_start_time_seconds") - psutil.Process().create_time()) < 5
    assert 0 < value(series, "process_open_fds") < value(series, "process_max_fds")
    cpu_s = value(series, "moldau_event_loop_cpu_seconds_total")
    assert 0 < cpu_s < value(series, "process_cpu_seconds_total")
    idle = value(series, "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent")
    assert 0 <= idle <= 1
    assert value(series, "kafka_network_socketserver_networkprocessoravgidle_percent") == idle
    assert value(series, "moldau_quorum_elections_started_total") == 1
    assert value(series, "moldau_quorum_elections_won_total") == 1
    assert value(series, "kafka_server_raftmetrics_number_of_voters") == 1
    assert value(series, "kafka_server_raftmetrics_current_vote") == 1
    commits = value(series, "moldau_quorum_commit_duration_seconds_count")
    assert commits >= 2, "at least the registration and the topic"
    assert value(series, "kafka_server_raftmetrics_commit_latency_avg") > 0
    assert value(series, "moldau_broker_heartbeat_duration_seconds_count") >= 1
    assert 0 <= value(series, "moldau_controller_broker_heartbeat_age_seconds", broker="1") < 10


def test_syncs_and_space_of_the_disk_are_shown(tmp_path: Path) -> None:
    settings = {"http.port": "0", "store": "files", "data.dir": str(tmp_path)}
    with Broker({"orders": 1}, settings) as broker:
        before = value(scrape(broker.node.http_address), "moldau_disk_sync_duration_seconds_count")
        produce(broker.bootstrap, "orders")
        series = scrape(broker.node.http_address)
        assert value(series, "moldau_disk_sync_duration_seconds_count") > before
        assert value(series, "kafka_log_logflushstats_logflushrateandtimems", quantile="0.99") > 0
        assert value(series, "moldau_disk_size_bytes") > value(series, "moldau_disk_free_bytes") > 0


def test_the_lag_of_a_group_is_in_the_second_scrape(broker: Broker) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "late"})
    consumer.commit(offsets=[TopicPartition("orders", 1, RECORDS - 5)], asynchronous=False)
    consumer.close()
    address = broker.node.http_address
    labels = {"consumergroup": "late", "topic": "orders", "partition": "1"}
    name = "kafka_consumergroup_current_offset"
    wait_for(lambda: (name, tuple(sorted(labels.items()))) in scrape(address))
    series = scrape(address)
    assert value(series, name, **labels) == RECORDS - 5
    assert value(series, f"{name}_sum", consumergroup="late", topic="orders") == RECORDS - 5
    assert value(series, "kafka_consumergroup_lag", **labels) == 5
    assert value(series, "kafka_consumergroup_lag_sum", consumergroup="late", topic="orders") == 5
    assert value(series, "kafka_consumergroup_members", consumergroup="late") == 0
    assert value(series, "moldau_consumergroup_state", state="ok", **labels) == 1
    lag_s = value(series, "kafka_consumergroup_group_lag_seconds", group="late", topic="orders", partition="1")
    assert 0 < lag_s < 600
    assert value(series, "kafka_consumergroup_group_max_lag_seconds", group="late") == lag_s


def test_failed_requests_are_counted_and_errors_of_clients_are_not(broker: Broker) -> None:
    consume_settings = {"bootstrap.servers": broker.bootstrap, "group.id": "creates-the-offsets-topic"}
    consumer = Consumer(consume_settings)
    consumer.subscribe(["orders"])
    while "__consumer_offsets" not in consumer.list_topics(timeout=30).topics:
        consumer.poll(0.05)
    consumer.close()
    name = "kafka_server_brokertopicmetrics_failedproducerequests_total"
    for topic in ("orders", "__consumer_offsets"):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 3_000_000})
        producer.produce(topic, b"x" * (2_000_000 if topic == "orders" else 1), partition=0)
        producer.flush(30)
    with WireClient(broker.bootstrap) as wire:
        code, _ = produce_raw(wire, "invented", batch([b"x"]))
        assert code != 0
    series = scrape(broker.node.http_address)
    assert value(series, name, topic="__consumer_offsets") == 1
    assert value(series, name, topic="orders") == 0, "a record that is too large is the client's error"
    assert "invented" not in broker.node.broker.topic_metrics._topics


def test_a_client_that_does_not_read_its_metrics_is_disconnected(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = threading.Event()

    async def render(*_: object) -> list[bytes]:
        rendered.set()
        return [b"x" * 30_000_000]

    monkeypatch.setattr("moldau.http.context.render_metrics", render)
    monkeypatch.setattr("moldau.http.front_connection.STALL_TIMEOUT_S", 0.2)
    host, _, port = str(broker.node.http_address).rpartition(":")
    http = broker.node._http
    assert http is not None
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert rendered.wait(60)
        wait_for(lambda: http._connection_count == 0)


def test_a_client_that_has_closed_its_sending_side_gets_its_metrics(broker: Broker) -> None:
    host, _, port = str(broker.node.http_address).rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while data := connection.recv(65536):
            received += data
    assert b"kafka_brokers 1" in received


def test_metrics_are_the_same_before_and_after_the_api_is_loaded(broker: Broker) -> None:
    names = {name for name, _ in scrape(broker.node.http_address)}
    address = broker.node.http_address
    assert address is not None
    with RawConnection(address) as connection:
        assert connection.request("GET", "/admin/v1/topics").status == 200
        response = connection.request("GET", "/metrics")
        assert response.status == 200
        text = response.body.decode()
    loaded = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    assert names <= loaded


def test_requests_behind_metrics_on_a_connection_are_answered_in_order(broker: Broker) -> None:
    address = broker.node.http_address
    assert address is not None
    with RawConnection(address) as connection:
        connection.send(b"GET /metrics HTTP/1.1\r\n\r\nHEAD /metrics HTTP/1.1\r\n\r\nGET /livez HTTP/1.1\r\n\r\n")
        assert b"kafka_brokers 1" in connection.receive().body
        head = connection.receive(has_body=False)
        assert int(head.headers["content-length"]) > 1_000
        assert connection.receive().json() == {"status": "live"}
        assert connection.request("POST", "/metrics").status == 405


def test_a_slow_head_behind_metrics_times_out(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.http.front_connection.HEAD_TIMEOUT_S", 0.2)
    address = broker.node.http_address
    assert address is not None
    with RawConnection(address) as connection:
        connection.send(b"GET /metrics HTTP/1.1\r\n\r\nGET /livez HTT")
        assert connection.receive().status == 200
        assert connection.receive().status == 408
        assert connection.is_closed()


def test_an_error_is_500_and_counted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LookupError("broken")

    monkeypatch.setattr(node_metrics, "_broker_families", fail)
    assert httpx.get(f"http://{broker.node.http_address}/metrics", timeout=60).status_code == 500
    assert broker.node.unexpected_errors == 1
    http = broker.node._http
    assert http is not None
    assert http._context is not None
    http._context.unexpected_errors = 0


def test_each_series_of_partitions_and_of_the_cluster_comes_from_one_node() -> None:
    # A stalled leader keeps its role, because the test counts elections.
    settings = {"http.port": "0", "controller.quorum.fetch.timeout.ms": "6000"}
    with Cluster(3, topics={"spread": 6}, settings=settings) as cluster:
        for partition in range(6):
            produce(cluster.bootstrap, "spread", partition)
        nodes = dict(cluster.nodes)

        def all_series() -> dict[int, Series]:
            return {node_id: scrape(node.http_address) for node_id, node in nodes.items()}

        found = all_series()
        owners = Counter(key for series in found.values() for key in series)
        per_node = (
            "kafka_server_",
            "kafka_log_",
            "kafka_network_",
            "moldau_request_",
            "moldau_broker_",
            "moldau_client_",
            "moldau_network_",
            "moldau_disk_",
            "moldau_event_loop_",
            "moldau_quorum_",
            "moldau_build_info",
            "moldau_controller_leader_elections_total",
            "moldau_follower_lag_seconds",
            "process_",
            "moldau_metadata_image_lag_records",
            "kafka_controller_kafkacontroller_activecontrollercount",
            "kafka_controller_kafkacontroller_timedoutbrokerheartbeatcount",
            "kafka_controller_controllerstats_uncleanleaderelections_total",
        )
        shared = [key for key, count in owners.items() if count > 1 and not key[0].startswith(per_node)]
        assert not shared
        assert total(found.values(), "kafka_topic_partition_current_offset") == 6 * RECORDS
        assert total(found.values(), "kafka_controller_kafkacontroller_activecontrollercount") == 1
        assert total(found.values(), "moldau_quorum_elections_won_total") == 1
        victim = next(node_id for node_id in nodes if node_id != cluster.controller_id)
        led_by_victim = value(found[victim], "kafka_server_replicamanager_leadercount")
        changes = {
            name: total(found.values(), name)
            for name in (
                "kafka_server_replicamanager_isrshrinks_total",
                "kafka_server_replicamanager_isrexpands_total",
                "moldau_controller_leader_elections_total",
            )
        }
        cluster.kill(victim)
        del nodes[victim]
        controller = nodes[cluster.controller_id]
        wait_for(lambda: value(scrape(controller.http_address), "kafka_brokers") == 2)

        def under_replicated() -> float:
            return total(all_series().values(), "kafka_server_replicamanager_underreplicatedpartitions")

        wait_for(lambda: under_replicated() == 6)

        def changed() -> list[float]:
            series = all_series().values()
            return [total(series, name) - before for name, before in changes.items()]

        # Counts of the victim are lost; it counted nothing.
        assert changed() == [6, 0, led_by_victim]
        assert value(
            scrape(controller.http_address), "moldau_controller_broker_heartbeat_age_seconds", broker=str(victim)
        )
        cluster.restart(victim)
        wait_for(lambda: under_replicated() == 0)
        assert changed()[1] == 6
        assert total(all_series().values(), "kafka_controller_controllerstats_uncleanleaderelections_total") == 0
