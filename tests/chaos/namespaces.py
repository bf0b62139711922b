"""Network namespaces, each with a TUN device whose packets are read and written through a file descriptor."""

import ctypes
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU = 9000
SUBNET = "10.77.0"

_libc = ctypes.CDLL(None, use_errno=True)


class IsolationUnavailable(Exception):
    """This machine or user cannot create namespaces; the message is one line."""


def check_machine() -> None:
    if os.geteuid() != 0:
        raise IsolationUnavailable("chaos needs root, for network namespaces and disks of its own")
    for path in ("/dev/net/tun", "/dev/loop-control"):
        if not os.path.exists(path):
            raise IsolationUnavailable(f"chaos needs {path}, which this machine does not have")


class Namespace:
    """A namespace with one TUN device; `descriptor` reads and writes its packets."""

    def __init__(self, name: str, host: int) -> None:
        self.name = name
        self.address = f"{SUBNET}.{host}"
        _ip("netns", "add", name)
        try:
            with _entered(name):
                self.descriptor = open_tun("tun0")
            _ip("-n", name, "link", "set", "lo", "up")
            _set_up(("-n", name), "tun0", self.address)
        except BaseException:
            _ip("netns", "delete", name)
            raise

    @property
    def command(self) -> list[str]:
        """Command prefix that runs a program in the namespace."""
        return ["ip", "netns", "exec", self.name]

    def close(self) -> None:
        os.close(self.descriptor)
        _ip("netns", "delete", self.name)


class ClientNamespace:
    """This process's own namespace, connected by a TUN device: clients run here."""

    def __init__(self, device: str, host: int) -> None:
        self.address = f"{SUBNET}.{host}"
        self.descriptor = open_tun(device)
        _set_up((), device, self.address)

    def close(self) -> None:
        # The device is removed with its last descriptor.
        os.close(self.descriptor)


def open_tun(device: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def _set_up(where: tuple[str, ...], device: str, address: str) -> None:
    _ip(*where, "address", "add", f"{address}/24", "dev", device)
    _ip(*where, "link", "set", device, "mtu", str(MTU), "up")


@contextmanager
def _entered(name: str) -> Iterator[None]:
    """Enters another namespace with the current thread."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    target = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        _enter(target)
        try:
            yield
        finally:
            _enter(before)
    finally:
        os.close(target)
        os.close(before)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, 0) != 0:
        error = ctypes.get_errno()
        raise IsolationUnavailable(f"cannot enter a network namespace: {os.strerror(error)}")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise IsolationUnavailable(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
