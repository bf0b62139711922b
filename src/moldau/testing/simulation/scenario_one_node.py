"""One node under fire: clients produce and consume while it is crashed, restarted and given a bad disk.

First a phase with faults, in which nothing acknowledged may be lost; then all is healed, and everybody must
get on with their work; then what is there is compared with what was acknowledged, over a clean restart.
"""

import asyncio
import errno
import logging
import random
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from moldau.errors import MoldauError
from moldau.node.node import Node
from moldau.observe.logging import ROOT, TextFormatter
from moldau.settings.broker import BrokerSettings
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.checker import check
from moldau.testing.simulation.client import LATEST, BrokerError, Client
from moldau.testing.simulation.disk import DiskSettings
from moldau.testing.simulation.history import History, Partition, TopicChange
from moldau.testing.simulation.loop import DeadlockError, LivelockError
from moldau.testing.simulation.network import NetworkSettings
from moldau.testing.simulation.simulation import HostCrashed, ProgramError, Simulation, Unfinished
from moldau.testing.simulation.workload import (
    Admin,
    Connect,
    Consumer,
    IdempotentProducer,
    PlainProducer,
    Worker,
    read_all,
)

T = TypeVar("T")

PORT = 9092
DATA_DIR = "/var/moldau"
ABLATIONS: Mapping[str, str] = {
    "fsync": "*/topic-*.log",
    "directory-sync": "*/topic-?-?",
    "metadata-fsync": "*/__cluster_metadata-0/*.log",
}
"""Safeguards that can be switched off, and the files or directories whose syncs then make nothing safe."""

RUN_TIMEOUT_MS = 600_000
HEAL_TIMEOUT_MS = 60_000
PROGRESS_WANTED = 3
LOG_LINES_KEPT = 200

PROFILES: Mapping[str, Sequence[str]] = {
    "power cuts": ("crash", "crash", "crash", "kill", "restart"),
    "kills": ("kill", "kill", "restart", "crash", "clock"),
    "network": ("cut", "reset", "crash", "delay", "clock"),
    "bad disk": ("sync error", "append error", "read error", "directory error", "crash", "kill"),
    "full disk": ("full", "full", "crash", "kill"),
    "everything": ("crash", "kill", "restart", "clock", "cut", "reset", "sync error", "append error", "full"),
}


@dataclass(slots=True)
class Outcome:
    seed: int
    profile: str
    trace_hash: str = ""
    acknowledged: int = 0
    """Records acknowledged with acks=all."""
    polled: int = 0
    crashes: int = 0
    faults: int = 0
    virtual_ms: int = 0
    violations: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """The node's last log lines."""


def run_seed(seed: int, ablation: str | None = None, *, keep_trace: bool = False) -> Outcome:
    """Plays the scenario of a seed, with a safeguard switched off if `ablation` names one."""
    return run_scenario(Scenario(seed, ablation, keep_trace=keep_trace))


def run_scenario(scenario: "Scenario") -> Outcome:
    outcome = scenario.outcome
    with _captured_log(scenario) as lines:
        try:
            scenario.simulation.run(scenario.play, RUN_TIMEOUT_MS)
            outcome.violations += [str(violation) for violation in check(scenario.history)]
        except (Broken, ProgramError, Unfinished, DeadlockError, LivelockError, AssertionError) as error:
            outcome.violations.append(f"{type(error).__name__}: {error}")
        outcome.log = list(lines)
    history = scenario.history
    outcome.trace_hash = scenario.simulation.trace_hash
    outcome.virtual_ms = scenario.simulation.loop.now_ns // 1_000_000
    outcome.acknowledged = sum(
        len(send.values) for send in history.sends if send.is_acknowledged and send.acks == -1
    )
    outcome.polled = sum(len(poll.records) for poll in history.polls)
    return outcome


class Broken(Exception):
    """The node did what it must not do, as seen from outside the protocol."""


class Scenario:
    def __init__(self, seed: int, ablation: str | None = None, *, keep_trace: bool = False) -> None:
        if ablation is not None and ablation not in ABLATIONS:
            raise ValueError(f"there is no ablation {ablation!r}; there are {', '.join(ABLATIONS)}")
        self._random = draw = random.Random(f"{seed}/plan")
        self.simulation = Simulation(
            seed,
            network=NetworkSettings(
                hiccup_chance=draw.choice((0, 0.01, 0.05)), cut_up_chance=draw.random() / 2
            ),
            keep_trace=keep_trace,
        )
        self.history = History()
        self.outcome = Outcome(seed, draw.choice(sorted(PROFILES)))
        self._disk = DiskSettings(
            sync_ms_max=draw.choice((0.5, 3.0, 20.0)),
            slow_sync_chance=draw.choice((0, 0.02)),
            syncs_lie="" if ablation is None else ABLATIONS[ablation],
        )
        self._server = self.simulation.add_host("server", disk=self._disk)
        self._clients = self.simulation.add_host("clients")
        self._settings = BrokerSettings(
            listen=(f"{self._server.address}:{PORT}",),
            data_dir=DATA_DIR,
            topic_defaults=TopicSettings(
                segment_bytes=draw.choice((10_000, 50_000, 1_000_000)),
                index_interval_bytes=draw.choice((100, 4096)),
            ),
        )
        topics = {f"topic-{number}": draw.randint(1, 3) for number in range(draw.randint(1, 3))}
        self._topics = topics
        self._partitions = [(topic, index) for topic, count in topics.items() for index in range(count)]
        self._workers: list[Worker] = []
        self._node: Node | None = None
        self._disk_is_bad = False

    def server_clock(self) -> int:
        return self._server.clock.wall_ms()

    # The play

    async def play(self) -> None:
        await self._boot()
        await self._create_topics()
        self._workers = self._make_workers()
        running = [self._clients.spawn(worker.run(), name=worker.name) for worker in self._workers]
        actions = PROFILES[self.outcome.profile]
        for _ in range(self._random.randint(2, 6)):
            await asyncio.sleep(self._random.uniform(0.05, 2))
            await self._act(self._random.choice(actions))
        await self._heal()
        await self._see_progress()
        for worker in self._workers:
            worker.stop()
        await asyncio.gather(*running)
        if not self.outcome.violations:
            await self._catch_up()
        before = await self._read_everything()
        await self._restart()
        self.history.logs = await self._read_everything()
        for partition, log in before.items():
            # Requests that were under way when the last client left may have come in since.
            if list(self.history.logs.get(partition, ()))[: len(log)] != log:
                self._violated(f"a clean restart changed {partition[0]}-{partition[1]}")
        self.history.topics = await self._ask(Client.topics)
        await self._stop()

    def _violated(self, what: str) -> None:
        """Notes it and lets the play go on, which may show more."""
        self.outcome.violations.append(what)

    async def _create_topics(self) -> None:
        for topic, partitions in self._topics.items():
            await self._ask(partial(Client.create_topic, name=topic, partitions=partitions))
            self.history.topic_changes.append(TopicChange(topic, is_creation=True, is_acknowledged=True))

    def _make_workers(self) -> list[Worker]:
        draw = self._random

        def parts(name: str) -> tuple[str, Connect, random.Random, History]:
            return name, self._connect, self.simulation.random_for(name), self.history

        workers: list[Worker] = [Admin(*parts("admin"))]
        for number in range(draw.randint(1, 4)):
            workers.append(IdempotentProducer(*parts(f"idempotent-{number}"), draw.choice(self._partitions)))
        for number, acks in enumerate(draw.sample((-1, -1, 1, 0), draw.randint(1, 3))):
            workers.append(PlainProducer(*parts(f"plain-{number}-acks-{acks}"), self._partitions, acks))
        for number in range(draw.randint(1, 3)):
            workers.append(Consumer(*parts(f"consumer-{number}"), draw.choice(self._partitions)))
        return workers

    # Faults

    async def _act(self, action: str) -> None:
        self.outcome.faults += 1
        network, draw = self.simulation.network, self._random
        match action:
            case "crash" | "kill":
                await self._take_down(action)
                await self._boot_under_fire()
            case "restart":
                await self._restart()
            case "clock":
                self._server.clock.jump(draw.choice((-3_600_000, -1000, 1000, 3_600_000)))
            case "cut":
                network.partition({"server"}, {"clients"}, one_way=draw.random() < 0.3)
                await asyncio.sleep(draw.uniform(0.01, 15))
                network.heal()
            case "delay":
                network.delay({"server"}, {"clients"}, draw.uniform(1, 200))
                await asyncio.sleep(draw.uniform(0.1, 3))
                network.heal()
            case "reset":
                network.reset({"server"}, {"clients"})
            case "full":
                used = self._server.disk.volume.used_bytes()
                self._disk.capacity_bytes = used + draw.randint(0, 20_000)
                await self._suffer()
            case _:
                operation = {"directory error": "sync_directory"}.get(action, action.split()[0])
                path = draw.choice(("*", "*.log", f"*{draw.choice(self._partitions)[0]}*"))
                times = draw.choice((1, 3, None))
                self._server.disk.inject(
                    operation, path, error=errno.EIO, after=draw.randint(0, 10), times=times
                )
                await self._suffer()

    async def _suffer(self) -> None:
        """Lets a bad disk do its work, then replaces it and starts the node again, as an operator does."""
        self._disk_is_bad = True
        await asyncio.sleep(self._random.uniform(0.1, 3))
        if self._random.random() < 0.3:
            await self._take_down(self._random.choice(("crash", "kill")))
            await self._boot_under_fire()
        self._mend_disk()
        await self._take_down(self._random.choice(("crash", "kill")))
        self._disk_is_bad = False
        await self._boot()

    def _mend_disk(self) -> None:
        self._server.disk.faults.clear()
        self._disk.capacity_bytes = DiskSettings().capacity_bytes

    async def _take_down(self, how: str) -> None:
        self.outcome.crashes += 1
        self._check_node()
        self._node = None
        if how == "crash":
            self._server.crash()
        else:
            self._server.kill()
        await asyncio.sleep(self._random.choice((0.001, 0.2, 2)))
        self._server.restart()

    async def _boot_under_fire(self) -> None:
        """Starts the node, which may be cut short by the next crash at any point of its recovery."""
        while self._random.random() < 0.3:
            booting = asyncio.create_task(self._boot())
            await asyncio.sleep(self._random.expovariate(1 / 0.02))
            was_done = booting.done()
            await self._take_down(self._random.choice(("crash", "kill")))
            try:
                await booting
            except HostCrashed:
                assert not was_done
        await self._boot()

    async def _heal(self) -> None:
        self.simulation.network.heal()
        self._mend_disk()

    # The node

    async def _boot(self) -> None:
        node = Node(self._server.world, self._settings)
        try:
            await self._server.run(node.start(), name="boot")
        except HostCrashed:
            raise
        except Exception as error:
            if not self._disk_is_bad or not isinstance(error, MoldauError | OSError):
                raise Broken(f"the node does not start: {_told(error)}") from error
            return
        self._node = node

    async def _restart(self) -> None:
        """A clean stop and a start in a new process."""
        await self._stop()
        self._server.kill()
        self._server.restart()
        await self._boot()

    async def _stop(self) -> None:
        self._check_node()
        node, self._node = self._node, None
        assert node is not None
        try:
            await self._server.run(node.stop(), name="stop")
        except Exception as error:
            raise Broken(f"the node does not stop: {_told(error)}") from error

    def _check_node(self) -> None:
        node = self._node
        if node is None:
            return
        if node.bugs:
            raise Broken(f"{node.bugs} requests ended in an unplanned exception")
        if node.failure is not None and not self._disk_is_bad:
            raise Broken(f"the node gave up: {node.failure!r}")

    # The end

    async def _see_progress(self) -> None:
        wanted = {worker.name: worker.made + PROGRESS_WANTED for worker in self._workers}
        deadline = self.simulation.loop.time() + HEAL_TIMEOUT_MS / 1000
        while True:
            stuck = [worker.name for worker in self._workers if worker.made < wanted[worker.name]]
            if not stuck:
                return
            if self.simulation.loop.time() > deadline or self.history.refusals:
                self._violated(f"no progress after healing: {', '.join(stuck)}")
                return
            await asyncio.sleep(0.1)

    async def _catch_up(self) -> None:
        """Consumers read on from where they are to the end, which shows whether they would miss anything."""
        for worker in self._workers:
            if isinstance(worker, Consumer):
                worker.hurries = True
                end = await self._end_of(worker.partition)
                while (worker.position or 0) < end:
                    await self._clients.run(worker.work_once())

    async def _read_everything(self) -> dict[Partition, Sequence[tuple[int, bytes]]]:
        logs: dict[Partition, Sequence[tuple[int, bytes]]] = {}
        for partition in self._partitions:
            try:
                end = await self._end_of(partition)
                logs[partition] = await self._ask(partial(read_all, partition=partition, until=end))
            except Broken as error:
                self._violated(f"{partition[0]}-{partition[1]} cannot be read: {error}")
        return logs

    async def _end_of(self, partition: Partition) -> int:
        return await self._ask(lambda client: client.list_offset(partition, LATEST))

    # Questions from outside

    async def _ask(self, question: Callable[[Client], Awaitable[T]]) -> T:
        """Asks a node that must be well."""

        async def ask() -> T:
            client = await self._connect("observer")
            try:
                return await question(client)
            finally:
                client.close()

        try:
            return await self._clients.run(ask())
        except (BrokerError, OSError) as error:
            raise Broken(f"a healthy node did not answer: {error!r}") from error

    async def _connect(self, client_id: str) -> Client:
        return await Client.connect(self._server.name, PORT, client_id)


def _told(error: Exception) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


@contextmanager
def _captured_log(scenario: Scenario) -> Iterator[deque[str]]:
    """The node's log goes into a list; what is printed elsewhere would only be in the way."""
    lines: deque[str] = deque(maxlen=LOG_LINES_KEPT)
    clock = scenario.server_clock

    class Capture(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    logger = logging.getLogger(ROOT)
    handler = Capture()
    handler.setFormatter(TextFormatter(clock))
    before = logger.level, logger.propagate, logger.handlers
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        level, logger.propagate, logger.handlers = before
        logger.setLevel(level)
