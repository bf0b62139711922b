"""A node on Postgres under load: `kill -9` of the node and of Postgres, and faults of the network between them. Nothing
that was acknowledged is lost or there twice: records, committed offsets, transactions.

MOLDAU_POSTGRES_NODE_KILLS (5) and MOLDAU_POSTGRES_KILLS (3) set the number of kills, MOLDAU_POSTGRES_CUTS (4) that of
faults of the network."""

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from support.broker_process import BrokerProcess
from support.checked_producer import (
    DEADLINE_S,
    PARTITIONS,
    RECONNECT,
    CheckedProducer,
    check_log,
    idempotent_producer,
    plain_producer,
    produce,
    read_all,
)
from support.postgres import HOW_TO_GET_ONE, PostgresServer, find_servers
from support.tcp_proxy import TcpProxy
from support.topics import QUIET, Topics, unique
from support.wire import WireClient, batch
from support.wire import produce as produce_batch

NODE_KILLS = int(os.environ.get("MOLDAU_POSTGRES_NODE_KILLS", "5"))
SERVER_KILLS = int(os.environ.get("MOLDAU_POSTGRES_KILLS", "3"))
CUTS = int(os.environ.get("MOLDAU_POSTGRES_CUTS", "4"))
SEED = int(os.environ.get("MOLDAU_SEED", "1"))
TRANSACTION_RECORDS = 4
REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, STORAGE_ERROR = 7, 20, 56

pytestmark = pytest.mark.usefixtures("only_moldau")


VERSIONS = sorted(find_servers(), key=int) or [""]


@pytest.fixture(params=sorted({VERSIONS[0], VERSIONS[-1]}))
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server that the test may kill. Each test runs with the oldest and the newest version on this machine."""
    if not request.param:
        pytest.skip(HOW_TO_GET_ONE)
    with PostgresServer(find_servers()[request.param]) as started:
        yield started


class TransactionalWriter:
    """Writes transactions of several records and the offset of a group, and knows which of them must be visible."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.group = unique("group")
        self.transactional_id = unique("tx")
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self._count = 0
        self._producer: Producer | None = None
        self._is_open = False

    def begin(self) -> None:
        """Starts a producer of the same id, which ends the transaction of the previous one, and a transaction."""
        settings = {"bootstrap.servers": self.bootstrap, "transactional.id": self.transactional_id}
        self._producer = Producer({**settings, **RECONNECT, **QUIET})
        self._producer.init_transactions(DEADLINE_S)
        self._producer.begin_transaction()
        for each in range(TRANSACTION_RECORDS):
            self._producer.produce(self.topic, b"%d %d" % (self._count, each), partition=each % PARTITIONS)
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group, **QUIET})
        offsets = [TopicPartition(self.topic, 0, self._count + 1)]
        self._producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), DEADLINE_S)
        consumer.close()
        self._producer.flush(DEADLINE_S)

    def commit(self) -> None:
        assert self._producer is not None
        self._producer.commit_transaction(DEADLINE_S)
        self.committed.append(self._count)
        self._count += 1

    def abandon(self) -> None:
        """Leaves the transaction to its successor, which aborts it."""
        self._producer = None
        self.aborted.append(self._count)
        self._count += 1

    def check(self) -> None:
        """Starts a new producer, so that no transaction is open, and checks what readers with read_committed get."""
        ender = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": self.transactional_id, **QUIET})
        ender.init_transactions(DEADLINE_S)
        expected = [b"%d %d" % (number, each) for number in self.committed for each in range(TRANSACTION_RECORDS)]
        assert sorted(read_committed(self.bootstrap, self.topic)) == sorted(expected)
        assert committed_offset(self.bootstrap, self.group, self.topic) == self.committed[-1] + 1


def read_committed(bootstrap: str, topic: str) -> list[bytes]:
    settings = {"group.id": "committed", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, "enable.auto.commit": False, **settings, **QUIET})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    values: list[bytes] = []
    at_end: set[int] = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(at_end) < PARTITIONS:
        assert time.monotonic() < deadline, f"read to the end of {at_end} only"
        for message in consumer.consume(1000, timeout=0.05):
            if message.error() is None:
                values.append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise KafkaException(message.error())
    consumer.close()
    return values


def committed_offset(bootstrap: str, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **QUIET})
    [found] = consumer.committed([TopicPartition(topic, 0)], timeout=DEADLINE_S)
    consumer.close()
    offset: int = found.offset
    return offset


def commit_offset(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **QUIET})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def check_all_sent(bootstrap: str, topic: str, *senders: CheckedProducer) -> None:
    """Waits until all records are acknowledged or have failed, and checks the log."""
    for sender in senders:
        assert sender.producer.flush(2 * DEADLINE_S) == 0
    check_log(read_all(bootstrap, topic), *senders)
    retrying = senders[0]
    assert not retrying.failed, "an idempotent producer gave up"
    assert len(retrying.acknowledged) == retrying.sent


def test_a_killed_node_loses_and_doubles_nothing(server: PostgresServer, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with BrokerProcess(tmp_path / "data", "--store", server.url) as served:
        topics = Topics(served.bootstrap)
        topic, group = topics.create(partitions=PARTITIONS), unique("group")
        transactions = TransactionalWriter(served.bootstrap, topics.create(partitions=PARTITIONS))
        senders = idempotent_producer(served.bootstrap), plain_producer(served.bootstrap)
        for number in range(NODE_KILLS):
            commit_offset(served.bootstrap, group, topic, number)
            transactions.begin()
            if number % 2 == 0:
                transactions.commit()
            produce(topic, senders, chance.uniform(0.0, 0.3))
            served.kill()
            if number % 2 == 1:
                transactions.abandon()
            if chance.random() < 0.3:
                served.start_and_kill(after_s=chance.uniform(0.05, 0.8))
            for sender in senders:
                sender.producer.poll(0)
            served.start()
            assert committed_offset(served.bootstrap, group, topic) == number
            check_log(read_all(served.bootstrap, topic), *senders)
        check_all_sent(served.bootstrap, topic, *senders)
        transactions.check()
        assert senders[1].failed, "no kill came while a request was under way"
        assert not served.data_dir.exists()


def test_a_killed_postgres_loses_and_doubles_nothing(server: PostgresServer, tmp_path: Path) -> None:
    """The node goes on by itself when the server is back."""
    chance = random.Random(SEED)

    def kill(number: int) -> None:
        if number % 4 == 3:
            server.stop()
        else:
            server.kill()
        time.sleep(chance.uniform(0.0, 1.0))
        server.start()

    with BrokerProcess(tmp_path / "data", "--store", server.url) as served:
        check_survives_faults(served, kill, SERVER_KILLS, chance)


def test_a_broken_network_loses_and_doubles_nothing(server: PostgresServer, tmp_path: Path) -> None:
    """The connections between the node and Postgres are cut or stall, and come back."""
    chance = random.Random(SEED)

    with TcpProxy(server.port) as proxy:

        def fault(number: int) -> None:
            if number % 2 == 0:
                proxy.cut()
            else:
                proxy.stall()
                if number % 4 == 3:
                    time.sleep(chance.uniform(0.0, 1.0))
                    # What was on its way is lost, perhaps the answer to a commit.
                    proxy.cut()
            time.sleep(chance.uniform(0.0, 1.0))
            proxy.restore()

        url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
        with BrokerProcess(tmp_path / "data", "--store", url) as served:
            check_survives_faults(served, fault, CUTS, chance)


def check_survives_faults(
    served: BrokerProcess, fault: Callable[[int], None], count: int, chance: random.Random
) -> None:
    """Injects faults under load. The process of the node must survive all of them."""
    topics = Topics(served.bootstrap)
    topic, group = topics.create(partitions=PARTITIONS), unique("group")
    transactions = TransactionalWriter(served.bootstrap, topics.create(partitions=PARTITIONS))
    senders = idempotent_producer(served.bootstrap), plain_producer(served.bootstrap)
    pid = served.pid
    for number in range(count):
        commit_offset(served.bootstrap, group, topic, number)
        transactions.begin()
        produce(topic, senders, chance.uniform(0.0, 0.3))
        fault(number)
        # The transaction began before the fault and is committed after it.
        transactions.commit()
        assert committed_offset(served.bootstrap, group, topic) == number
        produce(topic, senders, 0.0)
        check_log(read_all(served.bootstrap, topic), *senders)
    check_all_sent(served.bootstrap, topic, *senders)
    transactions.check()
    assert served.pid == pid
    assert served.process is not None
    assert served.process.poll() is None, served.output()
    # A new process reads the same from the database.
    served.kill()
    served.start()
    check_log(read_all(served.bootstrap, topic), *senders)
    transactions.check()


def test_a_node_without_its_disk_is_started_elsewhere(server: PostgresServer, tmp_path: Path) -> None:
    """Another machine: another directory, another port. The cluster id, topics, configs, offsets, groups are there."""
    (tmp_path / "first").mkdir()
    with BrokerProcess(tmp_path / "first" / "data", "--store", server.url) as first:
        topics = Topics(first.bootstrap)
        topic = topics.create(partitions=PARTITIONS, retention_ms=123_456)
        senders = (idempotent_producer(first.bootstrap),)
        produce(topic, senders, 0.5)
        senders[0].producer.flush(DEADLINE_S)
        transactions = TransactionalWriter(first.bootstrap, topics.create(partitions=PARTITIONS))
        transactions.begin()
        transactions.commit()
        commit_offset(first.bootstrap, "readers", topic, 17)
        cluster_id = topics.admin.list_topics(timeout=DEADLINE_S).cluster_id
        first.kill()
        shutil.rmtree(tmp_path / "first", ignore_errors=True)
        (tmp_path / "second").mkdir()
        with BrokerProcess(tmp_path / "second" / "data", "--store", server.url) as second:
            found = Topics(second.bootstrap).admin.list_topics(timeout=DEADLINE_S)
            assert found.cluster_id == cluster_id
            assert topic in found.topics
            check_log(read_all(second.bootstrap, topic), *senders)
            assert committed_offset(second.bootstrap, "readers", topic) == 17
            transactions.bootstrap = second.bootstrap
            transactions.check()


def test_requests_fail_with_a_retriable_error_while_postgres_is_away(server: PostgresServer, tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", "--store", server.url) as served,
        WireClient(served.bootstrap, timeout_s=60) as wire,
    ):
        topic = Topics(served.bootstrap).create()
        assert produce_batch(wire, topic, batch([b"before"])) == (0, 0)
        server.kill()
        began = time.monotonic()
        code, _ = produce_batch(wire, topic, batch([b"while it is away"]))
        assert code in (REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, STORAGE_ERROR), code
        assert time.monotonic() - began < 35
        server.start()
        deadline = time.monotonic() + DEADLINE_S
        while (answer := produce_batch(wire, topic, batch([b"after"])))[0] != 0:
            assert time.monotonic() < deadline, answer
        assert served.process is not None
        assert served.process.poll() is None


@pytest.mark.parametrize("fault", ["cut", "stall"])
def test_a_node_can_be_stopped_while_postgres_is_away(server: PostgresServer, tmp_path: Path, fault: str) -> None:
    with TcpProxy(server.port) as proxy:
        url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
        with BrokerProcess(tmp_path / "data", "--store", url) as served:
            topic = Topics(served.bootstrap).create(partitions=PARTITIONS)
            sender = idempotent_producer(served.bootstrap)
            produce(topic, (sender,), 0.2)
            getattr(proxy, fault)()
            sender.send(topic, 50)
            sender.producer.poll(0.2)
            served.stop()
            proxy.restore()
            served.start()
            check_all_sent(served.bootstrap, topic, sender)
