"""Whether the replicas of a partition hold the same, byte for byte, read from the files of nodes that have stopped."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from moldau.testing.simulation.checkers.history import Partition
from support.replica_files import batches

CHECKPOINT = "replication-offset-checkpoint"


def differences(
    data_dirs: Mapping[int, Path], partitions: Sequence[Partition], ends: Mapping[Partition, int]
) -> list[str]:
    """Where replicas that were all in sync have other batches than each other, below what each knew to be committed and
    below what clients have read, which ended at `ends`."""
    found: list[str] = []
    watermarks = {node_id: high_watermarks(data_dir) for node_id, data_dir in data_dirs.items()}
    for partition in partitions:
        known = min(each.get(partition, 0) for each in watermarks.values())
        committed = max(known, ends.get(partition, 0))
        held = {
            node_id: {
                offset: data for offset, data in batches(data_dir, *partition).items() if offset < committed
            }
            for node_id, data_dir in data_dirs.items()
        }
        first, *others = sorted(held)
        for other in others:
            where = [
                offset
                for offset in sorted(held[first].keys() | held[other].keys())
                if held[first].get(offset) != held[other].get(offset)
            ]
            if where:
                found.append(
                    f"replicas differ: nodes {first} and {other} have other batches at {where[:5]} of "
                    f"{partition[0]}-{partition[1]}, where {committed} is committed"
                )
    return found


def high_watermarks(data_dir: Path) -> dict[Partition, int]:
    """As the node wrote them down when it stopped."""
    lines = (data_dir / CHECKPOINT).read_text().splitlines()[2:]
    return {(topic, int(index)): int(offset) for topic, index, offset in map(str.split, lines)}
