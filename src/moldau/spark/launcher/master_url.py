"""Master URLs of Spark."""

import os
import re
from dataclasses import dataclass
from enum import Enum, auto

from moldau.spark.errors import LaunchError

DEFAULT_PORT = 7077


class MasterKind(Enum):
    LOCAL = auto()
    """The driver and the executors run in one process on this machine."""
    STANDALONE = auto()
    CONNECT = auto()
    OTHER = auto()
    """Masters that only Spark handles, such as yarn or k8s://…."""


@dataclass(frozen=True)
class Master:
    url: str
    kind: MasterKind
    threads: int = 0
    """The number of threads of a local master; 0 for other masters."""
    addresses: tuple[tuple[str, int], ...] = ()
    """The addresses of a standalone master and its standby masters; empty for other masters."""


def parse_master(url: str) -> Master:
    """Parses a master URL. Raises LaunchError for an invalid URL."""
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:\s*,\s*\d+)?\])?", url)
    if local:
        threads = os.cpu_count() or 1 if local.group(1) == "*" else int(local.group(1) or 1)
        if threads < 1:
            raise LaunchError(f"{url!r} has no threads: local[*] uses one per core.")
        return Master(url, MasterKind.LOCAL, threads=threads)
    if url.startswith("spark://"):
        return Master(url, MasterKind.STANDALONE, addresses=_addresses(url))
    if url.startswith("sc://"):
        return Master(url, MasterKind.CONNECT)
    if url == "yarn" or url.startswith(("k8s://", "local-cluster[")):
        return Master(url, MasterKind.OTHER)
    raise LaunchError(
        f"{url!r} is not a master URL: use local[*] for this machine, spark://host:{DEFAULT_PORT} "
        "for a standalone cluster, yarn, k8s://…, or sc://… for Spark Connect."
    )


def _addresses(url: str) -> tuple[tuple[str, int], ...]:
    found = []
    for each in url.removeprefix("spark://").split(","):
        host, colon, port = each.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise LaunchError(f"{url!r} lacks a port: a standalone master is spark://host:{DEFAULT_PORT}.")
        found.append((host.strip("[]"), int(port)))
    return tuple(found)
