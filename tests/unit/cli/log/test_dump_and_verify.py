"""`moldau log dump` and `moldau log verify` on valid and damaged files."""

import json
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import typer
from typer.testing import CliRunner, Result

from moldau.cli.log.dump import log_dump
from moldau.cli.log.verify import log_verify
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.producer_state import ProducerStateManager
from moldau.metadata import records as metadata_records
from moldau.raft import snapshot_format
from moldau.raft.messages import SnapshotId, VoterEndpoint, VoterNode
from moldau.raft.snapshot_format import SnapshotContents
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch, replace_records
from moldau.records.control_records import LeaderChange, LeaderChangeVoter, SnapshotFooter, SnapshotHeader
from moldau.records.record import Record
from support.control_batches import control_batch

FIRST, SECOND = f"{0:020d}", f"{6:020d}"
START_MS = 1_700_000_000_000

app = typer.Typer()
app.command("dump")(log_dump)
app.command("verify")(log_verify)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def batch_at(offset: int, count: int = 2, **fields: Any) -> bytes:
    records = [
        Record(timestamp=START_MS + offset + delta, key=b"key", value=b"value %d" % (offset + delta))
        for delta in range(count)
    ]
    given: dict[str, Any] = {"leader_epoch": 0, "producer_id": 5, "producer_epoch": 0, "base_sequence": offset}
    return build_batch(records, base_offset=offset, **given | fields)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Two segments: offsets 0..5 of epoch 0 and 6..9 of epoch 2, with everything that belongs to them."""
    directory = tmp_path / "orders-0"
    directory.mkdir()
    batches = [batch_at(0), batch_at(2, compression=4), batch_at(4)]
    (directory / f"{FIRST}.log").write_bytes(b"".join(batches))
    position = len(batches[0]) + len(batches[1])
    (directory / f"{FIRST}.index").write_bytes(struct.pack(">iiii", 3, len(batches[0]), 5, position))
    (directory / f"{FIRST}.timeindex").write_bytes(struct.pack(">qiqi", START_MS + 3, 3, START_MS + 5, 5))
    later = [batch_at(6, leader_epoch=2), batch_at(8, leader_epoch=2)]
    (directory / f"{SECOND}.log").write_bytes(b"".join(later))
    (directory / f"{SECOND}.index").write_bytes(struct.pack(">ii", 3, len(later[0])))
    (directory / f"{SECOND}.timeindex").write_bytes(struct.pack(">qi", START_MS + 9, 3))
    producers = ProducerStateManager()
    for data in batches:
        producers.update(Batch(data))
    (directory / f"{SECOND}.snapshot").write_bytes(producers.snapshot())
    epochs = LeaderEpochCache()
    epochs.assign(0, 0)
    epochs.assign(2, 6)
    (directory / "leader-epoch-checkpoint").write_text(epochs.to_text())
    return directory


def overwrite(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def test_a_valid_log_has_no_problems(partition: Path) -> None:
    for target in (partition, partition.parent):
        result = run("verify", "--records", target)
        assert result.exit_code == 0, result.output
        assert "8 files, 5 batches" in result.stdout
        assert "no problems found" in result.stdout


def test_each_valid_file_has_no_problems(partition: Path) -> None:
    for path in sorted(partition.iterdir()):
        result = run("verify", path)
        assert result.exit_code == 0, result.output


def damage_of(partition: Path, name: str, position: int, data: bytes, *options: str) -> str:
    overwrite(partition / name, position, data)
    result = run("verify", *options, partition)
    assert result.exit_code == 1
    assert all(line.startswith(str(partition)) for line in result.stdout.splitlines())
    return result.output


def test_a_flipped_bit_in_the_records_is_found(partition: Path) -> None:
    output = damage_of(partition, f"{FIRST}.log", 80, b"\xff")
    assert "invalid checksum at offset 0 (batch at position 0)" in output
    assert "replica or a backup" in output
    result = run("verify", "--json", partition)
    assert result.exit_code == 1
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {
            "file": str(partition / f"{FIRST}.log"),
            "kind": "record batches",
            "problem": "invalid checksum at offset 0 (batch at position 0)",
        }
    ]


def test_a_torn_tail_is_found(partition: Path) -> None:
    path = partition / f"{SECOND}.log"
    path.write_bytes(path.read_bytes() + batch_at(10)[:30])
    result = run("verify", partition)
    assert result.exit_code == 1
    assert "the last 30 bytes" in result.output
    assert "truncated at the next start" in result.output


def test_trailing_zeros_are_found(partition: Path) -> None:
    path = partition / f"{SECOND}.log"
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert "no record batch at position" in run("verify", partition).output


def test_a_batch_longer_than_the_file_is_found(partition: Path) -> None:
    path = partition / f"{SECOND}.log"
    path.write_bytes(path.read_bytes()[:-5])
    assert "but the file ends after" in run("verify", path).output


def test_decreasing_offsets_are_found(partition: Path) -> None:
    size = len(batch_at(0))
    output = damage_of(partition, f"{FIRST}.log", size, struct.pack(">q", 1))
    assert "offset 1 comes after offset 1" in output


def test_decreasing_offsets_between_segments_are_found(partition: Path) -> None:
    (partition / f"{FIRST}.log").write_bytes(batch_at(0, count=8))
    output = run("verify", partition).output
    assert "offset 6 comes after offset 7" in output


def test_an_offset_below_the_base_offset_is_found(partition: Path) -> None:
    (partition / f"{FIRST}.log").unlink()
    output = damage_of(partition, f"{SECOND}.log", 0, struct.pack(">q", 5))
    assert "offset 5 is below the segment's base offset 6" in output
    assert f"its segment {FIRST}.log does not exist" in output


def test_decreasing_leader_epochs_are_found(partition: Path) -> None:
    output = damage_of(partition, f"{SECOND}.log", len(batch_at(6)) + 12, struct.pack(">i", 1))
    assert "leader epoch 1 comes after epoch 2" in output
    assert "has leader epoch 1, but the checkpoint has 2" in output


def test_an_index_entry_without_a_batch_is_found(partition: Path) -> None:
    output = damage_of(partition, f"{FIRST}.index", 4, struct.pack(">i", 7))
    assert "no batch starts at position 7 of the entry for offset 3" in output
    assert "delete the index" in output


def test_an_index_entry_of_another_batch_is_found(partition: Path) -> None:
    output = damage_of(partition, f"{FIRST}.index", 0, struct.pack(">i", 4))
    assert "offset 4 is not in the batch at position" in output


def test_unordered_index_entries_are_found(partition: Path) -> None:
    assert "is out of order" in damage_of(partition, f"{FIRST}.index", 0, struct.pack(">i", 5))


def test_a_truncated_index_is_found(partition: Path) -> None:
    path = partition / f"{FIRST}.index"
    path.write_bytes(path.read_bytes()[:-3])
    assert "not a multiple of the entry size 8" in run("verify", partition).output


def test_preallocated_zeros_in_an_index_are_ignored(partition: Path) -> None:
    path = partition / f"{FIRST}.index"
    path.write_bytes(path.read_bytes() + bytes(800))
    assert run("verify", partition).exit_code == 0


def test_a_time_index_with_wrong_timestamps_is_found(partition: Path) -> None:
    output = damage_of(partition, f"{FIRST}.timeindex", 0, struct.pack(">q", START_MS + 2))
    assert f"the maximum timestamp up to offset 3 is {START_MS + 3}, not {START_MS + 2}" in output


def test_unordered_timestamps_are_found(partition: Path) -> None:
    output = damage_of(partition, f"{FIRST}.timeindex", 0, struct.pack(">q", START_MS + 50))
    assert "is out of order" in output


def test_a_time_index_beyond_the_segment_is_found(partition: Path) -> None:
    output = damage_of(partition, f"{SECOND}.timeindex", 8, struct.pack(">i", 30))
    assert "offset 36" in output


def test_transaction_indexes_are_printed_and_checked(partition: Path) -> None:
    path = partition / f"{SECOND}.txnindex"
    path.write_bytes(struct.pack(">hqqqq", 0, 5, 2, 8, 9))
    assert "producer 5, offsets 2..8, last stable offset 9" in run("dump", path).output
    assert run("verify", partition).exit_code == 0
    path.write_bytes(struct.pack(">hqqqq", 0, 5, 2, 7, 9))
    assert "there is no marker at offset 7" in run("verify", partition).output
    path.write_bytes(path.read_bytes()[:-1])
    assert "has a partial entry" in run("verify", partition).output


def test_a_damaged_producer_snapshot_is_found(partition: Path) -> None:
    assert "checksum of a producer snapshot" in damage_of(partition, f"{SECOND}.snapshot", 20, b"\x55")


def test_a_producer_snapshot_beyond_its_offset_is_found(partition: Path) -> None:
    (partition / f"{SECOND}.snapshot").rename(partition / f"{2:020d}.snapshot")
    assert "producer 5 has last offset 5, which is not below the snapshot's 2" in run("verify", partition).output


def test_a_damaged_epoch_checkpoint_is_found(partition: Path) -> None:
    (partition / "leader-epoch-checkpoint").write_text("0\n2\n2 0\n1 6\n")
    output = run("verify", partition).output
    assert "leader epoch checkpoint cannot be read" in output


def test_invalid_records_are_found_with_the_records_option(partition: Path) -> None:
    data = bytearray(batch_at(0))
    data[61] = 0x7E
    whole = bytes(data)
    path = partition / f"{FIRST}.log"
    path.write_bytes(bytes(replace_records(Batch(whole), whole[61:]).data))
    for name in (f"{FIRST}.index", f"{FIRST}.timeindex"):
        (partition / name).unlink()
    assert run("verify", path).exit_code == 0
    result = run("verify", "--records", path)
    assert result.exit_code == 1
    assert "record" in result.stdout


def test_further_problems_of_a_file_are_counted(partition: Path) -> None:
    path = partition / f"{FIRST}.index"
    path.write_bytes(struct.pack(">ii", 3, 1) * 50)
    result = run("verify", path)
    assert len(result.stdout.splitlines()) == 21
    assert "79 more problems" in result.stdout


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_paths_without_logs_are_errors_with_a_hint(command: str, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("x")
    for target in (other, tmp_path, tmp_path / "missing"):
        result = run(command, target)
        assert result.exit_code == 2
        assert result.output


def lines_of(*arguments: object) -> list[dict[str, Any]]:
    result = run("dump", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_dump_shows_batches(partition: Path) -> None:
    text = run("dump", partition / f"{FIRST}.log").stdout
    assert "offsets 0..1, 2 records" in text
    assert "producer 5 epoch 0, sequences 2..3" in text
    assert "zstd" in text
    batches = lines_of(partition / f"{FIRST}.log")
    assert [(line["base_offset"], line["last_offset"]) for line in batches] == [(0, 1), (2, 3), (4, 5)]
    assert all(line["checksum_is_right"] for line in batches)


def test_dump_shows_records(partition: Path) -> None:
    text = run("dump", "--records", partition / f"{FIRST}.log").stdout
    assert 'key "key"  value "value 3"' in text
    assert "2023-11-14T22:13:20.000+00:00" in text
    records = [line for line in lines_of("--records", partition / f"{FIRST}.log") if line["is"] == "record"]
    assert [line["value"] for line in records] == [f"value {offset}" for offset in range(6)]


def test_dump_stops_at_the_limit_of_each_file(partition: Path) -> None:
    lines = lines_of("--limit", 1, partition)
    assert len(lines) == 8
    assert len({line["file"] for line in lines}) == 8


def test_dump_shows_every_kind_of_file(partition: Path) -> None:
    text = run("dump", partition).stdout
    assert "offset 3 at position" in text
    assert "up to offset 5" in text
    assert "producer 5 epoch 0: last sequence 5 at offset 5" in text
    assert "epoch 2 from offset 6" in text


def test_dump_shows_binary_data(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(build_batch([Record(timestamp=-1, key=b"\xff", value=None, headers=(("h", b"1"),))]))
    text = run("dump", "--records", path).stdout
    assert "no time  key 0xff  value null  headers h=" in text
    assert lines_of("--records", path)[1]["key"] == {"base64": "/w=="}


def test_dump_continues_after_an_invalid_checksum_and_exits_with_1(partition: Path) -> None:
    overwrite(partition / f"{FIRST}.log", 80, b"\xff")
    result = run("dump", "--records", partition / f"{FIRST}.log")
    assert result.exit_code == 1
    assert "INVALID CHECKSUM" in result.stdout
    assert "offsets 4..5" in result.stdout


def test_dump_shows_batches_before_a_torn_tail(partition: Path) -> None:
    path = partition / f"{SECOND}.log"
    path.write_bytes(path.read_bytes() + b"torn")
    result = run("dump", path)
    assert result.exit_code == 1
    assert "offsets 8..9" in result.stdout
    assert "the last 4 bytes" in result.stderr
    assert "moldau log verify" in result.stderr


@pytest.fixture
def metadata_log(tmp_path: Path) -> Path:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    leader = control_batch(
        LeaderChange(1, (LeaderChangeVoter(1),), (LeaderChangeVoter(1),)), timestamp=START_MS, leader_epoch=1
    )
    topic = metadata_records.encode(metadata_records.TopicRecord(name="orders", topic_id=UUID(int=7)))
    batch = build_batch([Record(timestamp=START_MS, value=topic)], base_offset=1, leader_epoch=1)
    (directory / f"{FIRST}.log").write_bytes(leader + batch)
    snapshot = (
        control_batch(SnapshotHeader(START_MS), timestamp=START_MS, leader_epoch=1)
        + build_batch([Record(timestamp=START_MS, value=topic)], base_offset=1, leader_epoch=1)
        + control_batch(SnapshotFooter(), timestamp=START_MS, base_offset=2, leader_epoch=1)
    )
    (directory / f"{2:020d}-{1:010d}.checkpoint").write_bytes(snapshot)
    return directory


def test_dump_decodes_the_metadata_log_and_its_snapshots(metadata_log: Path) -> None:
    text = run("dump", "--records", metadata_log).stdout
    assert "LeaderChange leader_id=1" in text
    assert text.count("TopicRecord name=orders") == 2
    assert "SnapshotHeader last_contained_timestamp=" in text
    assert "SnapshotFooter" in text
    lines = lines_of("--records", metadata_log)
    topics = [line for line in lines if line.get("type") == "TopicRecord"]
    assert topics[0]["fields"] == {"name": "orders", "topic_id": str(UUID(int=7))}


def test_a_valid_metadata_log_has_no_problems(metadata_log: Path) -> None:
    result = run("verify", "--records", metadata_log)
    assert result.exit_code == 0, result.output


def test_dump_names_the_voters_in_a_snapshot(metadata_log: Path) -> None:
    voters = (VoterNode(1, UUID(int=11), (VoterEndpoint("NODES", "host-1", 9092),)),)
    made = SnapshotContents(SnapshotId(9, 3), voters, (), START_MS, leader_id=1)
    path = metadata_log / f"{9:020d}-{3:010d}.checkpoint"
    path.write_bytes(b"".join(snapshot_format.encode_snapshot(made)))
    text = run("dump", "--records", path).stdout
    assert "KRaftVersion version=1" in text
    assert "host='host-1', port=9092" in text
    (found,) = [line for line in lines_of("--records", path) if line.get("type") == "Voters"]
    (voter,) = found["fields"]["voters"]
    assert (voter["id"], voter["directory_id"]) == (1, str(UUID(int=11)))
    assert voter["endpoints"] == [{"listener": "NODES", "host": "host-1", "port": 9092}]
    assert run("verify", "--records", path).exit_code == 0


def test_an_incomplete_snapshot_is_found(metadata_log: Path) -> None:
    path = metadata_log / f"{2:020d}-{1:010d}.checkpoint"
    header = control_batch(SnapshotHeader(START_MS), timestamp=START_MS, leader_epoch=1)
    path.write_bytes(header)
    result = run("verify", path)
    assert result.exit_code == 1
    assert "there is no footer" in result.stdout
    assert "loads the previous one" in result.stderr


def test_a_damaged_snapshot_is_only_checked_by_name(metadata_log: Path) -> None:
    path = metadata_log / f"{2:020d}-{1:010d}.checkpoint"
    aside = path.rename(path.with_name(path.name + ".damaged"))
    aside.write_bytes(b"damaged")
    assert run("verify", metadata_log).exit_code == 0
    assert run("verify", aside).exit_code == 1


def test_an_invalid_metadata_record_is_found(metadata_log: Path) -> None:
    path = metadata_log / f"{FIRST}.log"
    path.write_bytes(build_batch([Record(timestamp=START_MS, value=b"\x09\x09\x09\x09")], leader_epoch=1))
    assert run("verify", "--records", path).exit_code == 1
    result = run("dump", "--records", path)
    assert result.exit_code == 1
    assert "PROBLEM" in result.stdout
