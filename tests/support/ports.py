"""Ports for the servers of tests. Between the choice of a port and the start of its server, and while a server is down,
nothing else may take it: each test process has a block of ports of its own, below those that the kernel gives away."""

import itertools
import os
import socket

HOST = "127.0.0.1"
FIRST, END = 10_000, 32_000
BLOCK_SIZE = 500


class PortBlock:
    """The ports after the first one of a block, each in its turn. A bound socket on the first keeps others away."""

    def __init__(self) -> None:
        count = (END - FIRST) // BLOCK_SIZE
        for number in range(count):
            start = FIRST + (os.getpid() + number) % count * BLOCK_SIZE
            held = socket.socket()
            try:
                held.bind((HOST, start))
            except OSError:
                held.close()
                continue
            self._held = held
            self._ports = itertools.cycle(range(start + 1, start + BLOCK_SIZE))
            return
        raise RuntimeError("no free block of ports")

    def take(self, count: int) -> int:
        """Returns the first of several consecutive ports that were not taken for a long time."""
        taken: list[int] = []
        for port in itertools.islice(self._ports, 2 * BLOCK_SIZE):
            if taken and port != taken[-1] + 1:
                taken.clear()
            if not _is_free(port):
                taken.clear()
                continue
            taken.append(port)
            if len(taken) == count:
                return taken[0]
        raise RuntimeError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


_blocks: dict[int, PortBlock] = {}
"""The block of this process by its id, because a forked process needs another one."""


def free_ports(count: int) -> int:
    """Returns the first of several consecutive free ports."""
    block = _blocks.get(os.getpid())
    if block is None:
        block = _blocks[os.getpid()] = PortBlock()
    return block.take(count)


def free_port() -> int:
    return free_ports(1)
