"""The content of a simulated disk: files and names. Each has a written image, which programs see, and a durable image,
which survives a power cut."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

SECTOR_BYTES = 512


def split_path(path: str) -> list[str]:
    return [part for part in path.split("/") if part and part != "."]


@dataclass(eq=False, slots=True)
class SyncSnapshot:
    """The data that a running sync makes durable. This is everything written before the sync started."""

    start: int
    data: bytes
    common_size: int
    """The size up to which the file still has the content of the snapshot."""


class Inode:
    """Content of a file. Below `_common_size` the written and the durable image are equal."""

    def __init__(self) -> None:
        self._written = bytearray()
        self._durable = bytearray()
        self._common_size = 0
        self._snapshots: list[SyncSnapshot] = []
        """Snapshots of running syncs, oldest first."""
        self._failed_ranges: list[tuple[int, int]] = []
        """Ranges whose sync failed. As in the kernel, a later sync treats these ranges as clean, although the device
        may not have their data."""

    @property
    def size(self) -> int:
        return len(self._written)

    @property
    def durable_size(self) -> int:
        return len(self._durable)

    def append(self, data: bytes) -> None:
        self._written += data

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._written[position : position + size])

    def truncate(self, size: int) -> None:
        if size > len(self._written):
            self._written += bytes(size - len(self._written))
            return
        del self._written[size:]
        self._common_size = min(self._common_size, size)
        for snapshot in self._snapshots:
            snapshot.common_size = min(snapshot.common_size, size)
        self._failed_ranges = [(start, min(end, size)) for start, end in self._failed_ranges if start < size]

    def flip_bits(self, position: int, mask: int) -> None:
        self._durable[position] ^= mask
        if position < len(self._written):
            self._written[position] ^= mask

    def snapshot(self) -> SyncSnapshot:
        snapshot = SyncSnapshot(self._common_size, bytes(self._written[self._common_size :]), len(self._written))
        self._snapshots.append(snapshot)
        return snapshot

    def make_durable(self, snapshot: SyncSnapshot, randomness: random.Random) -> None:
        if snapshot not in self._snapshots:
            # Another sync, which started after this one, has already finished and has made this snapshot durable.
            return
        del self._snapshots[: self._snapshots.index(snapshot) + 1]
        self._durable[snapshot.start :] = snapshot.data
        self._common_size = snapshot.common_size
        for start, end in self._failed_ranges:
            if randomness.random() < 0.5:
                self._durable[start:end] = bytes(end - start)
                self._common_size = min(self._common_size, start)

    def drop_cache(self, randomness: random.Random) -> None:
        """Drops the page cache of the ranges whose sync failed. Reads then show the data on the device, so that a later
        sync is reliable again."""
        for start, end in self._failed_ranges:
            if randomness.random() < 0.5:
                self._written[start:end] = bytes(end - start)
        self._failed_ranges.clear()

    def mark_failed(self, snapshot: SyncSnapshot) -> None:
        if snapshot in self._snapshots:
            self._snapshots.remove(snapshot)
        self._failed_ranges.append((snapshot.start, snapshot.common_size))

    def crash(self, randomness: random.Random) -> bool:
        """Loses a random part of the data that is not durable. Returns whether a torn write remains."""
        image = self._after_crash(randomness)
        is_torn = bytes(image) not in (bytes(self._durable), bytes(self._written))
        self._written = image
        self._durable = bytearray(image)
        self._common_size = len(image)
        self._snapshots.clear()
        self._failed_ranges.clear()
        return is_torn

    def _after_crash(self, randomness: random.Random) -> bytearray:
        tail = bytes(self._written[self._common_size :])
        old_tail = bytes(self._durable[self._common_size :])
        if not tail and not old_tail:
            return self._durable
        match randomness.choice(("lost", "lost", "kept", "cut", "cut", "torn", "torn")):
            case "lost":
                return self._durable
            case "kept":
                return self._written
            case "cut":
                return self._written[: self._common_size + randomness.randint(0, len(tail))]
        return self._durable[: self._common_size] + self._torn(tail, old_tail, randomness)

    def _torn(self, tail: bytes, old_tail: bytes, randomness: random.Random) -> bytearray:
        """Returns a torn tail. Each sector has new bytes, zeros, garbage, or old bytes from before a truncation."""
        size = randomness.randint(0, len(tail)) if randomness.random() < 0.5 else len(tail)
        image = bytearray()
        while len(image) < size:
            begin = len(image)
            end = min(size, begin + SECTOR_BYTES - (self._common_size + begin) % SECTOR_BYTES)
            roll = randomness.random()
            if roll < 0.6:
                image += tail[begin:end]
            elif roll < 0.8 and end <= len(old_tail):
                image += old_tail[begin:end]
            elif roll < 0.9:
                image += bytes(end - begin)
            else:
                image += randomness.randbytes(end - begin)
        return image


@dataclass(eq=False)
class SimulatedDirectory:
    """A directory, with the names that programs see and the names that survive a power cut."""

    names: "dict[str, TreeNode]" = field(default_factory=dict, init=False)
    durable_names: "dict[str, TreeNode]" = field(default_factory=dict, init=False)


TreeNode = Inode | SimulatedDirectory
DirectoryEntry = tuple[SimulatedDirectory, str]


@dataclass(eq=False)
class NameChange:
    """A change of names that is not durable yet. A power cut keeps or loses the whole change."""

    node: TreeNode
    source: DirectoryEntry | None
    target: DirectoryEntry | None

    def entries(self) -> list[DirectoryEntry]:
        return [place for place in (self.source, self.target) if place is not None]

    def make_durable(self) -> None:
        if self.source is not None:
            directory, name = self.source
            if directory.durable_names.get(name) is self.node:
                del directory.durable_names[name]
        if self.target is not None:
            directory, name = self.target
            directory.durable_names[name] = self.node


@dataclass(eq=False)
class Volume:
    root: SimulatedDirectory = field(default_factory=SimulatedDirectory)
    torn_writes: int = 0
    """The number of files in which a power cut has left a torn write."""
    _changes: list[NameChange] = field(default_factory=list)

    def find(self, path: str) -> TreeNode | None:
        node: TreeNode | None = self.root
        for name in split_path(path):
            if not isinstance(node, SimulatedDirectory):
                return None
            node = node.names.get(name)
        return node

    def files(self) -> Iterator[tuple[str, Inode]]:
        """Returns all files as programs see them, ordered by path."""
        return _walk(self.root, "")

    def used_bytes(self) -> int:
        return sum(inode.size for _, inode in self.files())

    # Names

    def link(self, directory: SimulatedDirectory, name: str, node: TreeNode) -> None:
        directory.names[name] = node
        self._changes.append(NameChange(node, None, (directory, name)))

    def rename(self, source: SimulatedDirectory, old: str, target: SimulatedDirectory, new: str) -> None:
        node = source.names.pop(old)
        target.names[new] = node
        self._changes.append(NameChange(node, (source, old), (target, new)))

    def remove(self, directory: SimulatedDirectory, name: str) -> None:
        node = directory.names[name]
        if isinstance(node, SimulatedDirectory):
            for child in sorted(node.names):
                self.remove(node, child)
        del directory.names[name]
        self._changes.append(NameChange(node, (directory, name), None))

    # Durability

    def pending_changes(self, directory: SimulatedDirectory) -> list[NameChange]:
        """Returns the changes that a sync of the directory makes durable if it starts now. Earlier changes that they
        depend on are included."""
        covered: list[NameChange] = []
        entries: set[DirectoryEntry] = set()
        for change in reversed(self._changes):
            if any(place[0] is directory or place in entries for place in change.entries()):
                covered.append(change)
                entries.update(change.entries())
        return covered[::-1]

    def make_durable(self, changes: list[NameChange]) -> None:
        for change in changes:
            if change in self._changes:
                change.make_durable()
                self._changes.remove(change)

    def crash(self, randomness: random.Random) -> None:
        for change in self._changes:
            if randomness.random() < 0.5:
                change.make_durable()
        self._changes.clear()
        self._crash_below(self.root, randomness)

    def _crash_below(self, directory: SimulatedDirectory, randomness: random.Random) -> None:
        directory.names = dict(sorted(directory.durable_names.items()))
        directory.durable_names = dict(directory.names)
        for node in directory.names.values():
            if isinstance(node, SimulatedDirectory):
                self._crash_below(node, randomness)
            elif node.crash(randomness):
                self.torn_writes += 1


def _walk(directory: SimulatedDirectory, prefix: str) -> Iterator[tuple[str, Inode]]:
    for name in sorted(directory.names):
        node = directory.names[name]
        if isinstance(node, SimulatedDirectory):
            yield from _walk(node, f"{prefix}/{name}")
        else:
            yield f"{prefix}/{name}", node
