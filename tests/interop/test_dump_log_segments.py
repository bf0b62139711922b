"""Kafka's DumpLogSegments reads Moldau's files: segments, indexes, producer snapshots and the metadata log."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from command_line import DUMP, Tools
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType

from moldau.logs.files.store import FileLogStore
from moldau.logs.transaction_index import AbortedTransaction
from moldau.metadata.image import BrokerRegistration, Endpoint, MetadataImage, PartitionRegistration, TopicImage
from moldau.metadata.image import ConfigResource as ConfigOf
from moldau.metadata.records import TopicRecord, encode
from moldau.metadata.snapshot import image_to_records
from moldau.platform.clock import SystemClock
from moldau.platform.os_disk import OsDisk
from moldau.raft import snapshot_format
from moldau.raft.messages import SnapshotId, VoterEndpoint, VoterNode
from moldau.raft.snapshot_format import SnapshotContents
from moldau.settings.topic import TopicSettings
from support.broker_process import BrokerProcess
from support.logs import NAME, TOPIC_ID
from support.topics import QUIET, Topics
from support.transactional_logs import data, marker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECORDS = 200


@dataclass
class Written:
    """Data directory of a stopped node, and its topics."""

    data_dir: Path
    topic_of: dict[str, str]
    """By codec."""
    idempotent_topic: str
    deleted_topic: str


def value(number: int) -> str:
    return f"value-{number:06d}-" + "abc" * 200


def produce(bootstrap: str, topic: str, **settings: object) -> None:
    named = {key.replace("_", "."): setting for key, setting in settings.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 10, "linger.ms": 5, **QUIET, **named})
    for number in range(RECORDS):
        producer.produce(topic, value(number), key=f"key-{number}", headers=[("h", b"1")])
    assert producer.flush(20) == 0


@pytest.fixture(scope="module")
def written(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    with BrokerProcess(tmp_path_factory.mktemp("dumped") / "data") as served:
        topics = Topics(served.bootstrap)
        topic_of = {codec: topics.create(segment_bytes=60_000, index_interval_bytes=1024) for codec in CODECS}
        for codec, topic in topic_of.items():
            produce(served.bootstrap, topic, compression_type=codec)
        idempotent = topics.create(segment_bytes=60_000)
        produce(served.bootstrap, idempotent, enable_idempotence=True)
        change = ConfigEntry("retention.ms", "12345", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, idempotent, incremental_configs=[change])
        topics.admin.incremental_alter_configs([resource])[resource].result(20)
        topics.admin.create_partitions([NewPartitions(idempotent, 3)])[idempotent].result(20)
        deleted = topics.create()
        topics.admin.delete_topics([deleted])[deleted].result(20)
        assert served.stop() == 0
        yield Written(served.data_dir, topic_of, idempotent, deleted)


def files(written: Written, topic: str, suffix: str) -> list[str]:
    found = sorted(str(path) for path in (written.data_dir / f"{topic}-0").glob(f"*{suffix}"))
    assert found
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_segments_are_read_record_by_record(tools: Tools, written: Written, codec: str) -> None:
    segments = files(written, written.topic_of[codec], ".log")
    printed = tools.run(DUMP, "--files", ",".join(segments), "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in printed
    assert set(re.findall(r"compresscodec: (\w+)", printed)) == {codec}
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", printed, re.MULTILINE)]
    assert offsets == list(range(RECORDS))
    payloads = re.findall(r"key: (\S+) payload: (\S+)", printed)
    assert payloads == [(f"key-{number}", value(number)) for number in range(RECORDS)]


def test_large_topics_have_several_segments(written: Written) -> None:
    assert len(files(written, written.topic_of["none"], ".log")) >= 2


@pytest.mark.parametrize("codec", CODECS)
def test_offset_and_time_indexes_pass_kafkas_checks(tools: Tools, written: Written, codec: str) -> None:
    topic = written.topic_of[codec]
    indexes = files(written, topic, ".index") + files(written, topic, ".timeindex")
    printed = tools.run(DUMP, "--files", ",".join(indexes), "--index-sanity-check")
    assert printed.count("passed sanity check") == len(indexes)
    # Without the sanity check the tool looks up every entry in its segment and reports differences.
    printed = tools.run(DUMP, "--files", ",".join(indexes), "--verify-index-only")
    for complaint in ("Mismatches in", "Found timestamp mismatch", "Found out of order timestamp", "Exception"):
        assert complaint not in printed


def test_indexes_have_entries(tools: Tools, written: Written) -> None:
    topic = written.topic_of["none"]
    printed = tools.run(DUMP, "--files", files(written, topic, ".index")[0])
    assert len(re.findall(r"^offset: \d+ position: \d+", printed, re.MULTILINE)) > 5
    printed = tools.run(DUMP, "--files", files(written, topic, ".timeindex")[0])
    assert re.search(r"^timestamp: \d+ offset: \d+", printed, re.MULTILINE)


def test_producer_snapshots_name_the_producer(tools: Tools, written: Written) -> None:
    snapshots = files(written, written.idempotent_topic, ".snapshot")
    printed = tools.run(DUMP, "--files", snapshots[-1])
    (producer,) = re.findall(r"producerId: (\d+) producerEpoch: (\d+) .*lastSequence: (\d+)", printed)
    assert producer[1:] == ("0", str(RECORDS - 1))


def test_transaction_indexes_are_read_by_kafka(tools: Tools, tmp_path: Path) -> None:
    expected = asyncio.run(write_transactions(tmp_path / "data"))
    directory = tmp_path / "data" / str(NAME)
    indexes = sorted(map(str, directory.glob("*.txnindex")))
    assert len(indexes) == 2
    printed = tools.run(DUMP, "--files", ",".join(indexes))
    entry = r"version: (\d+) producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)"
    assert [tuple(map(int, each)) for each in re.findall(entry, printed)] == [(0, *each) for each in expected]
    (segment, *_) = sorted(map(str, directory.glob("*.log")))
    printed = tools.run(DUMP, "--files", segment, "--print-data-log")
    assert "endTxnMarker: ABORT coordinatorEpoch: 4" in printed
    printed = tools.run(DUMP, "--files", sorted(map(str, directory.glob("*.snapshot")))[-1])
    found = re.findall(r"producerId: (\d+) .*coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+)", printed)
    assert found == [("9", "-1", "OptionalLong[0]"), ("7", "4", "OptionalLong.empty")]


async def write_transactions(path: Path) -> list[AbortedTransaction]:
    """Aborts transactions in two segments, while one of another producer is open."""
    store = FileLogStore(OsDisk(), str(path), SystemClock())
    await store.start()
    log = await store.open(NAME, TOPIC_ID, TopicSettings(segment_bytes=1024))
    await log.append([data(0, producer=9)])
    expected = []
    for sequence in range(2):
        first = log.end_offset
        await log.append([data(first, [b"v" * 800], sequence=sequence)])
        await log.append([marker(first + 1, coordinator_epoch=4)])
        expected.append(AbortedTransaction(7, first, first + 1, 0))
    await store.close()
    return expected


def test_kafka_decodes_the_metadata_log(tools: Tools, written: Written) -> None:
    log = written.data_dir / "__cluster_metadata-0" / "00000000000000000000.log"
    printed = tools.run(DUMP, "--files", str(log), "--cluster-metadata-decoder")
    assert "isvalid: false" not in printed
    assert "Error" not in printed
    assert "LeaderChange" in printed
    types = set(re.findall(r'"type":"(\w+)"', printed))
    assert {
        "FEATURE_LEVEL_RECORD",
        "REGISTER_BROKER_RECORD",
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "CONFIG_RECORD",
        "PRODUCER_IDS_RECORD",
        "REMOVE_TOPIC_RECORD",
    } <= types
    for topic in (*written.topic_of.values(), written.idempotent_topic, written.deleted_topic):
        assert f'"name":"{topic}"' in printed
    assert '"name":"retention.ms","value":"12345"' in printed


def test_kafka_decodes_a_metadata_snapshot(tools: Tools, tmp_path: Path) -> None:
    topic = TopicRecord(name="orders", topic_id=UUID(int=77))
    partition = PartitionRegistration(0, (1, 2, 3), (1, 2), 1, 4, 9, (3,), (), (3,), (2,), True)
    broker = BrokerRegistration(1, 7, UUID(int=5), (Endpoint("PLAINTEXT", "host-1", 9092),), "rack-1", False)
    image = MetadataImage(
        offset=41,
        features={"metadata.version": 25},
        brokers={1: broker},
        topics={"orders": TopicImage("orders", topic.topic_id, (partition,))},
        configs={ConfigOf(2, "orders"): {"retention.ms": "12345"}},
        next_producer_id=4000,
    )
    voters = (VoterNode(1, UUID(int=11), (VoterEndpoint("PLAINTEXT", "host-1", 9092),)),)
    values = [encode(record) for record in image_to_records(image)]
    made = SnapshotContents(SnapshotId(42, 3), voters, values, 1_700_000_000_000, leader_id=1)
    path = tmp_path / "00000000000000000042-0000000003.checkpoint"
    path.write_bytes(b"".join(snapshot_format.encode_snapshot(made)))
    printed = tools.run(DUMP, "--files", str(path), "--cluster-metadata-decoder")
    assert "isvalid: false" not in printed
    assert "Error" not in printed
    for control_record in ("SnapshotHeader", "KRaftVersion", "KRaftVoters", "LeaderChange", "SnapshotFooter"):
        assert control_record in printed
    types = re.findall(r'"type":"(\w+)"', printed)
    assert types == [
        "FEATURE_LEVEL_RECORD",
        "REGISTER_BROKER_RECORD",
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "CONFIG_RECORD",
        "PRODUCER_IDS_RECORD",
    ]
    for shown in (
        '"leader":1,"leaderRecoveryState":1,"leaderEpoch":4,"partitionEpoch":9',
        '"eligibleLeaderReplicas":[3]',
        '"host":"host-1","port":9092',
        '"nextProducerId":4000',
    ):
        assert shown in printed
