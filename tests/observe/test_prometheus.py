"""A real Prometheus scrapes three nodes: the alerts fire and stop, and every query of the dashboard has
data."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from moldau.observe.alert_rules import ALERT_RULES
from support.broker_process_cluster import BrokerProcessCluster
from support.prometheus import PrometheusServer, requires_prometheus, shorten, wait_until

pytestmark = [requires_prometheus, pytest.mark.slow]

TOPIC, GROUP = "orders", "billing"
PARTITIONS = 3
FULL_NODE = 3
VOLUME_BYTES = 160 * 1024 * 1024
SETTINGS = {"lag.sample.interval.ms": "500", "log.segment.bytes": str(8 * 1024 * 1024)}


@dataclass
class Monitored:
    cluster: BrokerProcessCluster
    prometheus: PrometheusServer
    results: list[str] = field(default_factory=list)
    """Lines for the proof."""

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def produce(self, count: int = 100, value: bytes = b"v" * 100) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})
        errors: list[KafkaError] = []
        for number in range(count):
            producer.produce(
                TOPIC,
                value,
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(60) == 0
        assert not errors

    def consume_all(self) -> None:
        """Commits the end of all partitions as a consumer that has processed all records."""
        consumer = self._consumer()
        ends = [
            TopicPartition(TOPIC, each, consumer.get_watermark_offsets(TopicPartition(TOPIC, each), 30)[1])
            for each in range(PARTITIONS)
        ]
        consumer.commit(offsets=ends, asynchronous=False)
        consumer.close()

    def _consumer(self) -> Consumer:
        return Consumer({"bootstrap.servers": self.bootstrap, "group.id": GROUP, "enable.auto.commit": False})

    def wait_for_alerts(self, fault: str, names: tuple[str, ...], wait: Callable[[], object] = lambda: None) -> None:
        """Waits until all these alerts have fired. Calls `wait` before each look at them."""
        start_s, fired_s = time.monotonic(), dict[str, float]()

        def have_fired() -> bool:
            wait()
            for each in set(names) & self.prometheus.firing().keys():
                fired_s.setdefault(each, time.monotonic() - start_s)
            return fired_s.keys() == set(names)

        wait_until(have_fired, f"{names} fire")
        self.results += [f"{fault:<16} {each:<30} fired after {fired_s[each]:5.1f} s" for each in names]

    def wait_until_quiet(self, names: tuple[str, ...]) -> None:
        """Waits until none of these alerts fires."""
        stopped_s = wait_until(lambda: self.quiet(*names), f"{names} stop")
        self.results.append(f"{'recovery':<16} {'all of them':<30} stopped after {stopped_s:3.1f} s")

    def quiet(self, *names: str) -> bool:
        """Returns whether none of these alerts fires; without names, none at all."""
        firing = set(self.prometheus.firing())
        return not (firing & set(names) if names else firing)


def moldau(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "moldau", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    directory = tmp_path_factory.mktemp("monitored")
    volume = directory / f"node-{FULL_NODE}"
    volume.mkdir()
    is_mounted = os.geteuid() == 0 and _mount(volume)
    try:
        with BrokerProcessCluster(directory, 3, SETTINGS, with_http=True) as cluster:
            targets = [f"127.0.0.1:{port}" for port in cluster.http_ports.values()]
            config = directory / "monitoring"
            moldau("generate", "prometheus", *targets, "--interval", "1", "--output", str(config))
            rules = config / "moldau-alerts.yml"
            rules.write_text(shorten(rules.read_text()))
            with PrometheusServer(config) as prometheus:
                found = Monitored(cluster, prometheus)
                cluster.create_topic(TOPIC, PARTITIONS)
                found.produce()
                found.consume_all()
                wait_until(lambda: prometheus.query(f'kafka_consumergroup_lag{{consumergroup="{GROUP}"}}'), "lag")
                wait_until(found.quiet, "no alert fires in a healthy cluster")
                assert prometheus.rule_count() == len(ALERT_RULES)
                yield found
                assert not prometheus.failed_rules()
                print("\n", *found.results, sep="\n")
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(volume)], check=True)


def _mount(volume: Path) -> bool:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "tmpfs", str(volume)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


def test_alerts_fire_for_a_killed_node_until_it_is_back(monitored: Monitored) -> None:
    alerts = ("MoldauNodeDown", "MoldauBrokerHeartbeatTimeout", "MoldauBrokerFenced", "MoldauUnderReplicated")
    cluster = monitored.cluster
    victim = next(each for each in cluster.nodes if each != cluster.quorum()[0])
    cluster.kill(victim)
    monitored.wait_for_alerts("killed node", alerts)
    instances = {each["instance"] for each in monitored.prometheus.firing()["MoldauNodeDown"]}
    assert instances == {f"127.0.0.1:{cluster.http_ports[victim]}"}
    brokers = {each["broker"] for each in monitored.prometheus.firing()["MoldauBrokerHeartbeatTimeout"]}
    assert brokers == {str(victim)}
    cluster.start(victim)
    monitored.wait_until_quiet(alerts)


def test_an_alert_fires_for_a_stalled_group_until_it_catches_up(monitored: Monitored) -> None:
    alert = "MoldauGroupStalled"
    monitored.produce()
    monitored.wait_for_alerts("stalled group", (alert,))
    found = monitored.prometheus.firing()[alert]
    assert {(each["consumergroup"], each["topic"]) for each in found} == {(GROUP, TOPIC)}
    monitored.consume_all()
    monitored.wait_until_quiet((alert,))


def test_alerts_fire_for_a_full_disk_until_it_has_space(monitored: Monitored) -> None:
    volume = monitored.cluster.nodes[FULL_NODE].data_dir
    if not volume.is_mount():
        pytest.skip("needs root and the right to mount a tmpfs")
    alerts = ("MoldauDiskNearlyFull", "MoldauReplicasOffline")
    ballast = volume / "ballast"
    _fill(ballast)
    # The node notices that its disk is full when it cannot write records.
    monitored.wait_for_alerts("full disk", alerts, lambda: monitored.produce(PARTITIONS, b"v" * 100_000))
    for alert in alerts:
        instances = {each["instance"] for each in monitored.prometheus.firing()[alert]}
        assert instances == {f"127.0.0.1:{monitored.cluster.http_ports[FULL_NODE]}"}
    ballast.unlink()
    monitored.wait_until_quiet(alerts)


def _fill(path: Path) -> None:
    """Allocates all free blocks of the volume."""
    volume = os.statvfs(path.parent)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, volume.f_bavail * volume.f_frsize)


def test_all_alerts_stop_after_the_faults(monitored: Monitored) -> None:
    monitored.consume_all()
    wait_until(monitored.quiet, "no alert fires")


def test_every_query_of_the_dashboard_has_data(monitored: Monitored) -> None:
    dashboard = json.loads(moldau("generate", "grafana"))
    monitored.produce()
    monitored.consume_all()
    values = {"$cluster": "moldau", "$instance": ".*", "$topic": ".*", "$consumergroup": ".*"}
    values["$__rate_interval"] = "30s"

    def replace(match: re.Match[str]) -> str:
        return values[match[0]]

    queries = [
        re.sub(r"\$\w+", replace, target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(queries) > 40
    empty = set(queries)

    def all_have_data() -> bool:
        empty.difference_update([each for each in empty if monitored.prometheus.query(each)])
        return not empty

    try:
        wait_until(all_have_data, "all queries have data", 30)
    except TimeoutError:
        pytest.fail(f"no data: {sorted(empty)}")
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert match is not None
            selector = re.sub(r"\$\w+", replace, match[1])
            assert monitored.prometheus.label_values(match[2], selector), variable["name"]
    monitored.results.append(f"{len(queries)} queries of the dashboard have data")
