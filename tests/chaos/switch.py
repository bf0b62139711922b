"""The switch between the namespaces: a process that moves packets from one TUN device to another, and on the way loses,
delays, doubles and reorders them as it is told, or lets none through.

Seeded: the same seed draws the same fate for the n-th packet of a direction.
"""

import heapq
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import selectors
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

PACKET_MAX = 65_536
QUEUE_MAX = 20_000
"""Packets under way at a time; beyond that they are dropped, as a router's would be."""
RESPONSE_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class LinkQuality:
    """What happens to packets of one direction."""

    delay_ms: float = 0
    jitter_ms: float = 0
    """Packets overtake each other where this is more than nothing."""
    loss: float = 0
    duplication: float = 0


@dataclass(slots=True)
class _LinkRules:
    blocked: set[tuple[str, str]] = field(default_factory=set)
    link_quality: dict[tuple[str, str], LinkQuality] = field(default_factory=dict)


class Switch:
    """Runs in a process of its own; the methods tell it what to do, and return when it does so."""

    def __init__(self, ports: Mapping[str, int], seed: int) -> None:
        """`ports`: descriptors of TUN devices by the address behind them."""
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(
            target=self._run, args=(dict(ports), theirs, seed), name="moldau-chaos-switch", daemon=True
        )
        self._process.start()
        theirs.close()

    def _run(self, ports: dict[str, int], orders: multiprocessing.connection.Connection, seed: int) -> None:
        # It ends by order, or with the process that gives them: its end of the pipe must be the only one then.
        self._pipe.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            _forward_packets(ports, orders, seed)
        except EOFError:
            return

    def cut(self, source: str, target: str) -> None:
        """No packet from source comes to target any more: nobody is told, packets are gone."""
        self._command({"do": "cut", "source": source, "target": target})

    def link_quality(self, source: str, target: str, link_quality: LinkQuality) -> None:
        self._command(
            {
                "do": "link_quality",
                "source": source,
                "target": target,
                "link_quality": [
                    link_quality.delay_ms,
                    link_quality.jitter_ms,
                    link_quality.loss,
                    link_quality.duplication,
                ],
            }
        )

    def heal(self) -> None:
        self._command({"do": "heal"})

    def counts(self) -> Counter[str]:
        """Packets passed, cut, lost, doubled and dropped."""
        return Counter(self._command({"do": "count"}))

    def close(self) -> None:
        try:
            self._command({"do": "end"})
        except (OSError, EOFError):
            # It is gone already.
            pass
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()

    def _command(self, order: object) -> dict[str, int]:
        self._pipe.send_bytes(json.dumps(order).encode())
        if not self._pipe.poll(RESPONSE_TIMEOUT_S):
            raise TimeoutError("the switch does not answer")
        answer: dict[str, int] = json.loads(self._pipe.recv_bytes())
        return answer


def _forward_packets(ports: dict[str, int], orders: multiprocessing.connection.Connection, seed: int) -> None:
    rules, counts = _LinkRules(), Counter[str]()
    draw = random.Random(seed)
    delayed: list[tuple[float, int, int, bytes]] = []
    number = 0
    selector = selectors.DefaultSelector()
    for address, descriptor in ports.items():
        selector.register(descriptor, selectors.EVENT_READ, address)
    selector.register(orders, selectors.EVENT_READ, None)
    while True:
        wait = None if not delayed else max(0.0, delayed[0][0] - time.monotonic())
        for key, _ in selector.select(wait):
            if key.data is None:
                if not _apply_command(json.loads(orders.recv_bytes()), rules, counts, orders):
                    return
                continue
            for packet in _packets(key.fd):
                target = _address(packet, 16)
                port = ports.get(target)
                if port is None:
                    continue
                source = key.data
                if (source, target) in rules.blocked:
                    counts["packets cut"] += 1
                    continue
                link_quality = rules.link_quality.get((source, target))
                if link_quality is None:
                    _write(port, packet, counts)
                    continue
                if draw.random() < link_quality.loss:
                    counts["packets lost"] += 1
                    continue
                copies = 1
                if draw.random() < link_quality.duplication:
                    counts["packets doubled"] += 1
                    copies = 2
                for _ in range(copies):
                    if len(delayed) >= QUEUE_MAX:
                        counts["packets dropped"] += 1
                        break
                    number += 1
                    late_ms = link_quality.delay_ms + draw.uniform(0, link_quality.jitter_ms)
                    heapq.heappush(delayed, (time.monotonic() + late_ms / 1000, number, port, packet))
        now = time.monotonic()
        while delayed and delayed[0][0] <= now:
            _, _, port, packet = heapq.heappop(delayed)
            _write(port, packet, counts)


def _apply_command(
    order: dict[str, object],
    rules: _LinkRules,
    counts: Counter[str],
    orders: multiprocessing.connection.Connection,
) -> bool:
    match order["do"]:
        case "cut":
            rules.blocked.add((str(order["source"]), str(order["target"])))
        case "link_quality":
            rules.link_quality[str(order["source"]), str(order["target"])] = LinkQuality(
                *order["link_quality"]
            )  # type: ignore[misc]
        case "heal":
            rules.blocked.clear()
            rules.link_quality.clear()
    orders.send_bytes(json.dumps(counts if order["do"] == "count" else {}).encode())
    return order["do"] != "end"


def _packets(descriptor: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < 64:
        try:
            found.append(os.read(descriptor, PACKET_MAX))
        except BlockingIOError:
            break
    return found


def _address(packet: bytes, position: int) -> str:
    # Only version 4 is set up between the namespaces.
    return ".".join(map(str, packet[position : position + 4])) if packet[0] >> 4 == 4 else ""


def _write(port: int, packet: bytes, counts: Counter[str]) -> None:
    try:
        os.write(port, packet)
        counts["packets passed"] += 1
    except BlockingIOError:
        counts["packets dropped"] += 1
