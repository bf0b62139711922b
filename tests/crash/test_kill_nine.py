"""`kill -9` during acks=all production, repeatedly on the same data: after each restart every acknowledged record is at
its offset, once and in order. MOLDAU_KILLS sets the number of kills (20)."""

import os
import random
from pathlib import Path

from support.broker_process import BrokerProcess
from support.checked_producer import (
    DEADLINE_S,
    PARTITIONS,
    check_log,
    idempotent_producer,
    plain_producer,
    produce,
    read_all,
)
from support.topics import Topics

KILLS = int(os.environ.get("MOLDAU_KILLS", "20"))
SEED = int(os.environ.get("MOLDAU_SEED", "1"))


def test_acknowledged_records_survive_kill_nine(tmp_path: Path, only_moldau: None) -> None:
    chance = random.Random(SEED)
    with BrokerProcess(tmp_path / "data") as served:
        topic = Topics(served.bootstrap).create(partitions=PARTITIONS, segment_bytes=1_000_000)
        senders = retrying, once = idempotent_producer(served.bootstrap), plain_producer(served.bootstrap)
        for _ in range(KILLS):
            produce(topic, senders, chance.uniform(0.0, 0.3))
            served.kill()
            if chance.random() < 0.3:
                served.start_and_kill(after_s=chance.uniform(0.05, 0.5))
            for sender in senders:
                sender.producer.poll(0)
            served.start()
            check_log(read_all(served.bootstrap, topic), *senders)
        for sender in senders:
            assert sender.producer.flush(DEADLINE_S) == 0
        check_log(read_all(served.bootstrap, topic), *senders)
        assert not retrying.failed, "an idempotent producer gave up"
        assert len(retrying.acknowledged) == retrying.sent
        assert once.failed, "no kill came while a request was under way"


def test_topics_and_configs_survive_kill_nine(tmp_path: Path, only_moldau: None) -> None:
    with BrokerProcess(tmp_path / "data") as served:
        names = set()
        for number in range(5):
            topics = Topics(served.bootstrap)
            names.add(topics.create(partitions=2, retention_ms=100_000 + number))
            served.kill()
            served.start()
            assert set(Topics(served.bootstrap).admin.list_topics(timeout=DEADLINE_S).topics) == names


def test_a_deleted_topic_stays_deleted_after_kill_nine(tmp_path: Path, only_moldau: None) -> None:
    with BrokerProcess(tmp_path / "data") as served:
        topics = Topics(served.bootstrap)
        remaining, deleted = topics.create(), topics.create()
        topics.admin.delete_topics([deleted])[deleted].result(DEADLINE_S)
        served.kill()
        served.start()
        assert set(Topics(served.bootstrap).admin.list_topics(timeout=DEADLINE_S).topics) == {remaining}
