"""The switch between namespaces: a process that forwards packets between TUN devices, and drops, delays, duplicates or
reorders them.

With the same seed the n-th packet of a direction is treated in the same way.
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
"""Limit of delayed packets; further ones are dropped, as a router would."""
RESPONSE_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class LinkQuality:
    """What happens to packets of one direction."""

    delay_ms: float = 0
    jitter_ms: float = 0
    """Packets overtake each other if this is above 0."""
    loss: float = 0
    duplication: float = 0


@dataclass(slots=True)
class _LinkRules:
    blocked: set[tuple[str, str]] = field(default_factory=set)
    link_quality: dict[tuple[str, str], LinkQuality] = field(default_factory=dict)


class Switch:
    """Runs in its own process. Methods return when the process has applied them."""

    def __init__(self, ports: Mapping[str, int], seed: int) -> None:
        """`ports`: descriptors of TUN devices by the address behind them."""
        self._pipe, child_end = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(
            target=self._run, args=(dict(ports), child_end, seed), name="moldau-chaos-switch", daemon=True
        )
        self._process.start()
        child_end.close()

    def _run(self, ports: dict[str, int], commands: multiprocessing.connection.Connection, seed: int) -> None:
        # It ends by command, or when the parent process closes the pipe, so no other end may stay open.
        self._pipe.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            _forward_packets(ports, commands, seed)
        except EOFError:
            return

    def block(self, source: str, target: str) -> None:
        """Drops all packets from source to target silently."""
        self._command({"do": "block", "source": source, "target": target})

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
        """Returns counts of packets by what happened to them."""
        return Counter(self._command({"do": "count"}))

    def close(self) -> None:
        try:
            self._command({"do": "end"})
        except (OSError, EOFError):
            # The process has already ended.
            pass
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()

    def _command(self, command: object) -> dict[str, int]:
        self._pipe.send_bytes(json.dumps(command).encode())
        if not self._pipe.poll(RESPONSE_TIMEOUT_S):
            raise TimeoutError("the switch does not answer")
        answer: dict[str, int] = json.loads(self._pipe.recv_bytes())
        return answer


def _forward_packets(ports: dict[str, int], commands: multiprocessing.connection.Connection, seed: int) -> None:
    rules, counts = _LinkRules(), Counter[str]()
    draw = random.Random(seed)
    delayed: list[tuple[float, int, int, bytes]] = []
    number = 0
    selector = selectors.DefaultSelector()
    for address, descriptor in ports.items():
        selector.register(descriptor, selectors.EVENT_READ, address)
    selector.register(commands, selectors.EVENT_READ, None)
    while True:
        wait = None if not delayed else max(0.0, delayed[0][0] - time.monotonic())
        for key, _ in selector.select(wait):
            if key.data is None:
                if not _apply_command(json.loads(commands.recv_bytes()), rules, counts, commands):
                    return
                continue
            for packet in _packets(key.fd):
                target = _address(packet, 16)
                port = ports.get(target)
                if port is None:
                    continue
                source = key.data
                if (source, target) in rules.blocked:
                    counts["packets blocked"] += 1
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
                    counts["packets duplicated"] += 1
                    copies = 2
                for _ in range(copies):
                    if len(delayed) >= QUEUE_MAX:
                        counts["packets dropped"] += 1
                        break
                    number += 1
                    delay_ms = link_quality.delay_ms + draw.uniform(0, link_quality.jitter_ms)
                    heapq.heappush(delayed, (time.monotonic() + delay_ms / 1000, number, port, packet))
        now = time.monotonic()
        while delayed and delayed[0][0] <= now:
            _, _, port, packet = heapq.heappop(delayed)
            _write(port, packet, counts)


def _apply_command(
    command: dict[str, object], rules: _LinkRules, counts: Counter[str], commands: multiprocessing.connection.Connection
) -> bool:
    match command["do"]:
        case "block":
            rules.blocked.add((str(command["source"]), str(command["target"])))
        case "link_quality":
            rules.link_quality[str(command["source"]), str(command["target"])] = LinkQuality(*command["link_quality"])  # type: ignore[misc]
        case "heal":
            rules.blocked.clear()
            rules.link_quality.clear()
    commands.send_bytes(json.dumps(counts if command["do"] == "count" else {}).encode())
    return command["do"] != "end"


def _packets(descriptor: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < 64:
        try:
            found.append(os.read(descriptor, PACKET_MAX))
        except BlockingIOError:
            break
    return found


def _address(packet: bytes, position: int) -> str:
    # Only IPv4 is configured between the namespaces.
    return ".".join(map(str, packet[position : position + 4])) if packet[0] >> 4 == 4 else ""


def _write(port: int, packet: bytes, counts: Counter[str]) -> None:
    try:
        os.write(port, packet)
        counts["packets forwarded"] += 1
    except BlockingIOError:
        counts["packets dropped"] += 1
