"""Byte-by-byte comparison of the replicas of a partition, from the files of stopped nodes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from moldau.testing.simulation.checkers.history import Partition
from support.replica_files import batches

CHECKPOINT = "replication-offset-checkpoint"


def differences(
    data_dirs: Mapping[int, Path], partitions: Sequence[Partition], ends: Mapping[Partition, int]
) -> list[str]:
    """Returns differences between replicas below the committed end: the lowest high watermark of the replicas, or
    `ends`, up to which clients have read."""
    found: list[str] = []
    watermarks = {node_id: high_watermarks(data_dir) for node_id, data_dir in data_dirs.items()}
    for partition in partitions:
        common = min(each.get(partition, 0) for each in watermarks.values())
        committed = max(common, ends.get(partition, 0))
        replica_batches = {
            node_id: {offset: data for offset, data in batches(data_dir, *partition).items() if offset < committed}
            for node_id, data_dir in data_dirs.items()
        }
        first, *others = sorted(replica_batches)
        for other in others:
            offsets = [
                offset
                for offset in sorted(replica_batches[first].keys() | replica_batches[other].keys())
                if replica_batches[first].get(offset) != replica_batches[other].get(offset)
            ]
            if offsets:
                found.append(
                    f"replicas differ: nodes {first} and {other} have other batches at {offsets[:5]} of "
                    f"{partition[0]}-{partition[1]}, where {committed} is committed"
                )
    return found


def high_watermarks(data_dir: Path) -> dict[Partition, int]:
    """Returns the high watermarks that the node checkpointed when it stopped."""
    lines = (data_dir / CHECKPOINT).read_text().splitlines()[2:]
    return {(topic, int(index)): int(offset) for topic, index, offset in map(str.split, lines)}
