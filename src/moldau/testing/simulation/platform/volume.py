"""What is on a simulated disk: files and names, as programs see them and as a power cut would leave them."""

import random
from collections.abc import Iterator

SECTOR_BYTES = 512


def split_path(path: str) -> list[str]:
    return [part for part in path.split("/") if part and part != "."]


class Snapshot:
    """What a sync covers: everything that was written when it began, and nothing that came later."""

    def __init__(self, start: int, data: bytes) -> None:
        self.start = start
        self.data = data
        self.agreed = start + len(data)
        """Up to here the file still holds what the snapshot does."""


class Inode:
    """A file's content. Below `_agreed` both images are the same; above it nothing is certain."""

    def __init__(self) -> None:
        self._written = bytearray()
        self._safe = bytearray()
        self._agreed = 0
        self._snapshots: list[Snapshot] = []
        """Those of running syncs, oldest first."""
        self._spoiled: list[tuple[int, int]] = []
        """Stretches whose sync failed: the kernel calls them clean although the device may not have them."""

    @property
    def size(self) -> int:
        return len(self._written)

    @property
    def safe_size(self) -> int:
        return len(self._safe)

    def append(self, data: bytes) -> None:
        self._written += data

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._written[position : position + size])

    def truncate(self, size: int) -> None:
        if size > len(self._written):
            self._written += bytes(size - len(self._written))
            return
        del self._written[size:]
        self._agreed = min(self._agreed, size)
        for snapshot in self._snapshots:
            snapshot.agreed = min(snapshot.agreed, size)
        self._spoiled = [(start, min(end, size)) for start, end in self._spoiled if start < size]

    def flip(self, position: int, mask: int) -> None:
        self._safe[position] ^= mask
        if position < len(self._written):
            self._written[position] ^= mask

    def snapshot(self) -> Snapshot:
        snapshot = Snapshot(self._agreed, bytes(self._written[self._agreed :]))
        self._snapshots.append(snapshot)
        return snapshot

    def make_safe(self, snapshot: Snapshot, randomness: random.Random) -> None:
        if snapshot not in self._snapshots:
            # A sync that began later has ended earlier and covered all of it.
            return
        del self._snapshots[: self._snapshots.index(snapshot) + 1]
        self._safe[snapshot.start :] = snapshot.data
        self._agreed = snapshot.agreed
        for start, end in self._spoiled:
            if randomness.random() < 0.5:
                self._safe[start:end] = bytes(end - start)
                self._agreed = min(self._agreed, start)

    def drop_cache(self, randomness: random.Random) -> None:
        """Shows what became of the stretches whose sync failed; a later sync then tells the truth about them."""
        for start, end in self._spoiled:
            if randomness.random() < 0.5:
                self._written[start:end] = bytes(end - start)
        self._spoiled.clear()

    def spoil(self, snapshot: Snapshot) -> None:
        if snapshot in self._snapshots:
            self._snapshots.remove(snapshot)
        self._spoiled.append((snapshot.start, snapshot.agreed))

    def crash(self, randomness: random.Random) -> bool:
        """Loses what is not safe, or some of it; True where a part of it is left."""
        image = self._after_crash(randomness)
        is_torn = bytes(image) not in (bytes(self._safe), bytes(self._written))
        self._written = image
        self._safe = bytearray(image)
        self._agreed = len(image)
        self._snapshots.clear()
        self._spoiled.clear()
        return is_torn

    def _after_crash(self, randomness: random.Random) -> bytearray:
        tail = bytes(self._written[self._agreed :])
        old_tail = bytes(self._safe[self._agreed :])
        if not tail and not old_tail:
            return self._safe
        match randomness.choice(("lost", "lost", "kept", "cut", "cut", "torn", "torn")):
            case "lost":
                return self._safe
            case "kept":
                return self._written
            case "cut":
                return self._written[: self._agreed + randomness.randint(0, len(tail))]
        return self._safe[: self._agreed] + self._torn(tail, old_tail, randomness)

    def _torn(self, tail: bytes, old_tail: bytes, randomness: random.Random) -> bytearray:
        """Sector by sector: the new bytes, zeros, garbage, or what was there before a truncation."""
        size = randomness.randint(0, len(tail)) if randomness.random() < 0.5 else len(tail)
        image = bytearray()
        while len(image) < size:
            begin = len(image)
            end = min(size, begin + SECTOR_BYTES - (self._agreed + begin) % SECTOR_BYTES)
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


class Directory:
    """Names as programs see them and as a power cut would leave them."""

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.safe_names: dict[str, Node] = {}


Node = Inode | Directory
Place = tuple[Directory, str]


class _Change:
    """A change of names that is not safe yet. It happens wholly or not at all."""

    def __init__(self, node: Node, source: Place | None, target: Place | None) -> None:
        self.node = node
        self.source = source
        self.target = target

    def places(self) -> list[Place]:
        return [place for place in (self.source, self.target) if place is not None]

    def make_safe(self) -> None:
        if self.source is not None:
            directory, name = self.source
            if directory.safe_names.get(name) is self.node:
                del directory.safe_names[name]
        if self.target is not None:
            directory, name = self.target
            directory.safe_names[name] = self.node


class Volume:
    def __init__(self) -> None:
        self.root = Directory()
        self.torn_writes = 0
        """Files of which a power cut has left a part of what was not safe."""
        self._changes: list[_Change] = []

    def find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for name in split_path(path):
            if not isinstance(node, Directory):
                return None
            node = node.names.get(name)
        return node

    def files(self) -> Iterator[tuple[str, Inode]]:
        """All files as programs see them, in the order of their paths."""
        return _walk(self.root, "")

    def used_bytes(self) -> int:
        return sum(inode.size for _, inode in self.files())

    # Names

    def link(self, directory: Directory, name: str, node: Node) -> None:
        directory.names[name] = node
        self._changes.append(_Change(node, None, (directory, name)))

    def rename(self, source: Directory, old: str, target: Directory, new: str) -> None:
        node = source.names.pop(old)
        target.names[new] = node
        self._changes.append(_Change(node, (source, old), (target, new)))

    def remove(self, directory: Directory, name: str) -> None:
        node = directory.names[name]
        if isinstance(node, Directory):
            for child in sorted(node.names):
                self.remove(node, child)
        del directory.names[name]
        self._changes.append(_Change(node, (directory, name), None))

    # What is safe

    def changes_of(self, directory: Directory) -> list[object]:
        """What a sync of the directory that begins now covers, with the changes those rest on."""
        covered: list[_Change] = []
        places: set[Place] = set()
        for change in reversed(self._changes):
            if any(place[0] is directory or place in places for place in change.places()):
                covered.append(change)
                places.update(change.places())
        covered.reverse()
        return list(covered)

    def make_safe(self, changes: list[object]) -> None:
        covered = set(map(id, changes))
        for change in self._changes:
            if id(change) in covered:
                change.make_safe()
        self._changes = [change for change in self._changes if id(change) not in covered]

    def crash(self, randomness: random.Random) -> None:
        for change in self._changes:
            if randomness.random() < 0.5:
                change.make_safe()
        self._changes.clear()
        self._crash_below(self.root, randomness)

    def _crash_below(self, directory: Directory, randomness: random.Random) -> None:
        directory.names = dict(sorted(directory.safe_names.items()))
        directory.safe_names = dict(directory.names)
        for node in directory.names.values():
            if isinstance(node, Directory):
                self._crash_below(node, randomness)
            elif node.crash(randomness):
                self.torn_writes += 1


def _walk(directory: Directory, prefix: str) -> Iterator[tuple[str, Inode]]:
    for name in sorted(directory.names):
        node = directory.names[name]
        if isinstance(node, Directory):
            yield from _walk(node, f"{prefix}/{name}")
        else:
            yield f"{prefix}/{name}", node
