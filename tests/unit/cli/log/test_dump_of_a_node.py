"""`moldau log dump` on the files of a real node: lines, records of internal topics, quorum state."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from moldau.cli.log.dump import log_dump
from moldau.cli.log.lines import escape
from moldau.cli.log.verify import log_verify
from moldau.client import Admin, Consumer, Producer
from moldau.metadata.records import NoOpRecord, RemoveTopicRecord, TopicRecord, encode
from moldau.raft.messages import SnapshotId
from moldau.raft.snapshot_format import SnapshotContents, encode_snapshot
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from support.broker_process import BrokerProcess

RECORDS = [
    (b"key1", b"this is the first message i sent!"),
    (b"key2", '{"name":"żółw"}'.encode()),
    (None, b"no key"),
    (b"", b"empty key"),
    (b"a key", b"two\nlines\r\tand a \\ backslash"),
    (b"\xff\x00", b"\x1b[31m\xfe"),
    (b"deleted", None),
    (b"separators", "\u2028 \x85".encode()),
]
LINES = [
    "0 key1 this is the first message i sent!",
    '1 key2 {"name":"żółw"}',
    r"2 \N no key",
    "3  empty key",
    r"4 a\x20key two\nlines\r	and a \\ backslash",
    r"5 \xff\x00 \x1b[31m\xfe",
    r"6 deleted \N",
    r"7 separators \u2028 \u0085",
]

app = typer.Typer()
app.command("dump")(log_dump)
app.command("verify")(log_verify)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


async def write_records(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic("orders", 3)
        await admin.create_topic("payments", 1)
        await admin.create_topic("mistake", 2)
        await admin.delete_topics(["mistake"])
    async with Producer(bootstrap) as producer:
        for key, value in RECORDS:
            await (await producer.send("orders", value, key=key, partition=0))
    consumer = Consumer(bootstrap, group_id="billing", auto_offset_reset="earliest", enable_auto_commit=False)
    async with Producer(bootstrap, transactional_id="billing-1") as producer, consumer:
        consumer.subscribe(["orders"])
        while not await consumer.poll(1_000):
            pass
        await consumer.commit()
        async with producer.transaction():
            await producer.send("payments", b"42 EUR")
    async with Admin(bootstrap) as admin:
        await admin.delete_groups(["billing"])


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node") / "data"
    partitions = ("--offsets-topic-num-partitions", "1", "--transaction-state-log-num-partitions", "1")
    with BrokerProcess(directory, *partitions, "--group-initial-rebalance-delay-ms", "0") as node:
        asyncio.run(asyncio.wait_for(write_records(node.bootstrap), 60))
        node.stop()
    return directory


def records_of(path: Path, type_: str) -> list[dict[str, Any]]:
    result = run("dump", "--records", "--json", path)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return [line for line in lines if line.get("type") == type_]


def test_lines_of_a_partition(data_dir: Path) -> None:
    result = run("dump", "--lines", data_dir / "orders-0")
    assert (result.exit_code, result.stdout.split("\n")) == (0, [*LINES, ""])


def test_lines_do_not_show_transaction_markers(data_dir: Path) -> None:
    assert run("dump", "--lines", data_dir / "payments-0").stdout.splitlines() == [r"0 \N 42 EUR"]


def test_lines_of_the_metadata_log(data_dir: Path) -> None:
    result = run("dump", "--lines", data_dir / "__cluster_metadata-0")
    assert result.exit_code == 0, result.output
    lines = [line.split(" ", 3) for line in result.stdout.splitlines()]
    assert [(action, body) for _, _, action, body in lines][:4] == [
        ("create-topic", '{"topic_name":"orders","partition_count":3}'),
        ("create-topic", '{"topic_name":"payments","partition_count":1}'),
        ("create-topic", '{"topic_name":"mistake","partition_count":2}'),
        ("delete-topic", '{"topic_name":"mistake"}'),
    ]
    offsets = [int(offset) for offset, _, _, _ in lines]
    assert offsets == sorted(set(offsets))
    assert {epoch for _, epoch, _, _ in lines} == {"1"}


def test_lines_of_a_data_directory_name_each_log(data_dir: Path) -> None:
    lines = run("dump", "--lines", data_dir).stdout.splitlines()
    start = lines.index("==> orders-0 <==")
    assert lines[start + 1 : start + 1 + len(LINES)] == LINES
    assert "==> __cluster_metadata-0 <==" in lines


def test_the_limit_applies_to_each_log(data_dir: Path) -> None:
    assert run("dump", "--lines", "--limit", 2, data_dir / "orders-0").stdout.splitlines() == LINES[:2]


@pytest.mark.parametrize("option", ["--records", "--json"])
def test_lines_exclude_other_formats(data_dir: Path, option: str) -> None:
    result = run("dump", "--lines", option, data_dir)
    assert result.exit_code == 2
    assert "--lines cannot be combined" in result.output


def test_lines_need_a_log(data_dir: Path) -> None:
    result = run("dump", "--lines", data_dir / "__cluster_metadata-0" / "quorum-state")
    assert result.exit_code == 2
    assert "--lines needs segments" in result.output


def test_committed_offsets_are_decoded(data_dir: Path) -> None:
    directory = data_dir / "__consumer_offsets-0"
    commits = records_of(directory, "OffsetCommit")
    first = next(each for each in commits if each["key"]["partition"] == 0)
    assert first["key"] == {"group": "billing", "topic": "orders", "partition": 0}
    assert first["value"]["offset"] == len(RECORDS)
    assert first["value"]["metadata"] == ""
    assert any(each["value"] is None for each in commits)
    text = run("dump", "--records", directory).stdout
    assert '  OffsetCommit  key {"group": "billing", "topic": "orders", "partition": 0}  value {"offset": 8, ' in text
    assert '  OffsetCommit  key {"group": "billing", "topic": "orders", "partition": 0}  value null' in text


def test_groups_are_decoded_with_subscription_and_assignment(data_dir: Path) -> None:
    groups = records_of(data_dir / "__consumer_offsets-0", "GroupMetadata")
    stable = next(each["value"] for each in groups if each["value"] and each["value"]["members"])
    assert stable["protocol_type"] == "consumer"
    [member] = stable["members"]
    assert member["subscription"]["topics"] == ["orders"]
    assert member["assignment"]["partitions"] == [["orders", 0], ["orders", 1], ["orders", 2]]


def test_transactions_are_decoded(data_dir: Path) -> None:
    records = records_of(data_dir / "__transaction_state-0", "Transaction")
    assert {each["key"]["transactional_id"] for each in records} == {"billing-1"}
    assert [each["value"]["state"] for each in records][-3:] == ["Ongoing", "PrepareCommit", "CompleteCommit"]
    assert records[-2]["value"]["partitions"] == ["payments-0"]
    text = run("dump", "--records", data_dir / "__transaction_state-0").stdout
    assert '  Transaction  key {"transactional_id": "billing-1"}  value {' in text


def test_the_quorum_state_is_decoded(data_dir: Path) -> None:
    path = data_dir / "__cluster_metadata-0" / "quorum-state"
    stored = json.loads(path.read_text())
    [line] = [json.loads(line) for line in run("dump", "--json", path).stdout.splitlines()]
    assert (line["leader_id"], line["leader_epoch"], line["voted_id"]) == (1, 1, 1)
    assert line["cluster_id"] == stored["cluster_id"]
    assert f"epoch 1, leader 1, voted for 1, cluster {stored['cluster_id']}" in run("dump", path).stdout
    assert "epoch 1, leader 1" in run("dump", data_dir).stdout


def test_all_files_of_the_node_are_valid(data_dir: Path) -> None:
    result = run("verify", "--records", data_dir)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"data_version": 1, "leader_id": 1}'])
def test_a_damaged_quorum_state_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "quorum-state").write_bytes(content)
    for command in ("dump", "verify"):
        result = run(command, tmp_path / "quorum-state")
        assert result.exit_code == 1
        assert isinstance(result.exception, SystemExit)
        assert "quorum-state: " in result.output


def write_log(directory: Path, *records: Record) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / f"{0:020d}.log").write_bytes(build_batch(list(records), base_offset=0, leader_epoch=3))
    return directory


@pytest.mark.parametrize("log", ["__consumer_offsets-7", "__transaction_state-7", "__cluster_metadata-0"])
@settings(max_examples=25)
@given(key=st.none() | st.binary(max_size=40), value=st.none() | st.binary(max_size=80), version=st.integers(0, 5))
def test_records_that_cannot_be_decoded_are_shown(
    tmp_path_factory: pytest.TempPathFactory, log: str, key: bytes | None, value: bytes | None, version: int
) -> None:
    directory = tmp_path_factory.getbasetemp() / log
    start = b"\0" + bytes([version])
    framed = None if value is None else b"\1" + bytes([version * 3]) + value
    for number, record in enumerate([(key, value), (start + (key or b""), start + (value or b"")), (key, framed)]):
        write_log(directory, Record(key=record[0], value=record[1]))
        for options in (("--records",), ("--records", "--json"), ("--lines",)):
            result = run("dump", *options, directory)
            assert result.exception is None or isinstance(result.exception, SystemExit), (number, result.exception)
            assert result.exit_code in (0, 1)


def test_an_undecodable_record_is_shown_with_its_bytes(tmp_path: Path) -> None:
    directory = write_log(
        tmp_path / "__consumer_offsets-3", Record(key=b"\0\1abc", value=b"value"), Record(key=b"\0\x63new", value=b"v")
    )
    result = run("dump", "--records", directory)
    assert result.exit_code == 1
    assert 'value "value"  PROBLEM: cannot be decoded: the key of an offset' in result.stdout
    # The second record has a type that Moldau does not know.
    assert 'value "v"\n' in result.stdout


def test_an_undecodable_metadata_record_has_its_own_line(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "__cluster_metadata-0", Record(value=b"\1\x63\0"))
    assert run("dump", "--lines", directory).stdout == (
        '0 3 undecodable {"problem":"metadata records with api key 99 are not supported"}\n'
    )


def test_topics_of_a_deleted_start_of_the_metadata_log_come_from_the_snapshot(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    kept, deleted = UUID(int=1), UUID(int=2)
    values = [encode(TopicRecord(name="kept", topic_id=kept)), encode(TopicRecord(name="deleted", topic_id=deleted))]
    snapshot = SnapshotContents(SnapshotId(100, 4), (), values, timestamp_ms=0)
    (directory / f"{100:020d}-{4:010d}.checkpoint").write_bytes(b"".join(encode_snapshot(snapshot)))
    records = [Record(value=encode(RemoveTopicRecord(topic_id=deleted))), Record(value=encode(NoOpRecord()))]
    (directory / f"{100:020d}.log").write_bytes(build_batch(records, base_offset=100, leader_epoch=5))
    assert run("dump", "--lines", directory).stdout.splitlines() == [
        '98 4 create-topic {"topic_name":"kept","partition_count":0}',
        '99 4 create-topic {"topic_name":"deleted","partition_count":0}',
        '100 5 delete-topic {"topic_name":"deleted"}',
    ]
    assert run("dump", "--lines", directory / f"{100:020d}.log").stdout == (
        f'100 5 delete-topic {{"topic_id":"{deleted}"}}\n'
    )


@given(st.binary())
def test_escaped_bytes_are_one_line_and_can_be_restored(data: bytes) -> None:
    text = escape(data)
    assert len(text.splitlines()) <= 1
    assert unescape(text) == data
    assert " " not in escape(data, is_key=True)
    assert unescape(escape(data, is_key=True)) == data


def unescape(text: str) -> bytes:
    out = b""
    position = 0
    while position < len(text):
        if text[position] != "\\":
            out += text[position].encode()
            position += 1
            continue
        kind = text[position + 1]
        size = {"x": 2, "u": 4}.get(kind, 0)
        digits = text[position + 2 : position + 2 + size]
        if kind == "x":
            out += bytes([int(digits, 16)])
        else:
            out += chr(int(digits, 16)).encode() if size else {"\\": b"\\", "n": b"\n", "r": b"\r"}[kind]
        position += 2 + size
    return out
