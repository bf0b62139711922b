"""Whether the replicas of a partition hold the same, byte for byte, read from the files of nodes that have stopped."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from moldau.testing.simulation.history import Partition
from support.replica_files import batches

CHECKPOINT = "replication-offset-checkpoint"


def differences(
    data_dirs: Mapping[int, Path], partitions: Sequence[Partition], ends: Mapping[Partition, int]
) -> list[str]:
    """Below the lowest high watermark all replicas have the same batches; and none lacks what clients read, which ended
    at `ends`."""
    found: list[str] = []
    watermarks = {node_id: high_watermarks(data_dir) for node_id, data_dir in data_dirs.items()}
    for partition in partitions:
        name = f"{partition[0]}-{partition[1]}"
        held = {node_id: batches(data_dir, *partition) for node_id, data_dir in data_dirs.items()}
        agreed = min(each.get(partition, 0) for each in watermarks.values())
        below = {
            node_id: {offset: data for offset, data in each.items() if offset < agreed}
            for node_id, each in held.items()
        }
        first, *others = sorted(below)
        for other in others:
            where = [
                offset
                for offset in sorted(below[first].keys() | below[other].keys())
                if below[first].get(offset) != below[other].get(offset)
            ]
            if where:
                found.append(
                    f"replicas differ: nodes {first} and {other} have other batches at {where[:5]} of {name}, "
                    f"below the high watermark {agreed}"
                )
        if agreed < ends.get(partition, 0):
            found.append(
                f"high watermark is behind: {name} was read up to {ends[partition]}, "
                f"and nodes say {[each.get(partition, 0) for each in watermarks.values()]}"
            )
    return found


def high_watermarks(data_dir: Path) -> dict[Partition, int]:
    """As the node wrote them down when it stopped."""
    lines = (data_dir / CHECKPOINT).read_text().splitlines()[2:]
    return {(topic, int(index)): int(offset) for topic, index, offset in map(str.split, lines)}
