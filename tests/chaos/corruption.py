"""Corruption of the files of a stopped node: a flipped bit, or a truncated tail."""

import random
from collections.abc import Mapping
from pathlib import Path

FILE_KINDS: Mapping[str, str] = {
    "segment": "chaos-*/*.log",
    "index": "chaos-*/*.index",
    "time index": "chaos-*/*.timeindex",
    "producer snapshot": "chaos-*/*.snapshot",
    "epoch checkpoint": "chaos-*/leader-epoch-checkpoint",
    "partition metadata": "chaos-*/partition.metadata",
    "group log": "__consumer_offsets-*/*.log",
    "recovery checkpoint": "recovery-point-offset-checkpoint",
    "high watermark checkpoint": "replication-offset-checkpoint",
    "metadata log": "__cluster_metadata-0/*.log",
    "metadata snapshot": "__cluster_metadata-0/*.checkpoint",
    "quorum state": "__cluster_metadata-0/quorum-state",
    "identity": "meta.properties",
}

ACTIVE_FILE_KINDS = ("segment", "group log", "metadata log")
"""Kinds of which only the newest file of each log is corrupted: the file that a node scans after a crash."""


def find_files(data_dir: Path, kind: str) -> list[Path]:
    found = sorted(path for path in data_dir.glob(FILE_KINDS[kind]) if path.is_file() and path.stat().st_size > 0)
    if kind in ACTIVE_FILE_KINDS:
        return list({path.parent: path for path in found}.values())
    return found


def flip_bit(path: Path, draw: random.Random) -> int:
    """Flips a random bit; returns the position of the byte."""
    data = bytearray(path.read_bytes())
    position = draw.randrange(len(data))
    data[position] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    return position


def truncate_tail(path: Path, draw: random.Random) -> int:
    """Truncates a random part of the end; returns the new size."""
    remaining = max(0, path.stat().st_size - draw.randint(1, 2000))
    with path.open("r+b") as file:
        file.truncate(remaining)
    return remaining
