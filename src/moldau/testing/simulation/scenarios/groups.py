"""Consumers share topics in groups, and come, go and are killed, while their node is under fire.

In the phase with faults no committed offset may be lost or move back and no partition have two owners in a
generation. When all is healed and nobody comes or goes any more, every group must settle, read everything there is and
commit it; and all that is committed must outlast clean restarts, with the groups at work and with nobody there.
"""

import asyncio
import itertools
import random
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from moldau.client.errors import KafkaError
from moldau.groups.topic import OFFSETS_TOPIC
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.ablations.groups import ABLATIONS
from moldau.testing.simulation.checkers.groups import check_groups
from moldau.testing.simulation.checkers.history import History, Partition
from moldau.testing.simulation.checkers.history_groups import Fate, GroupHistory, Settled
from moldau.testing.simulation.checkers.records import check
from moldau.testing.simulation.platform.process import Process, Program
from moldau.testing.simulation.platform.simulation import Host
from moldau.testing.simulation.scenarios.faulty_node import PORT
from moldau.testing.simulation.scenarios.outcome import Broken
from moldau.testing.simulation.scenarios.scenario import NodeScenario
from moldau.testing.simulation.workloads.client import Client
from moldau.testing.simulation.workloads.group_calls import describe, look
from moldau.testing.simulation.workloads.groups import (
    Clerk,
    Ghost,
    GroupProducer,
    GroupWorker,
    Grower,
    Keeper,
    Member,
    MemberPlan,
    Open,
    Passerby,
)
from moldau.testing.simulation.workloads.recorder import WitnessedCluster

T = TypeVar("T")

ASSIGNORS: Sequence[Sequence[str]] = (
    ("range",),
    ("roundrobin",),
    ("sticky",),
    ("cooperative-sticky",),
    ("cooperative-sticky",),
    ("range", "cooperative-sticky"),
)
REQUEST_TIMEOUT_MS = 5_000
METADATA_AGE_MS_MAX = 3_000
"""How long it may take until leaders of groups hear of new partitions."""
REST_S_MAX = 6
"""Between faults: groups need time to come together."""
PROGRESS_WANTED = 3


class Groups(NodeScenario):
    NAME = "groups"
    SYNC_MS_MAX = (3.0, 20.0, 100.0)
    """Slow ones give more time in which an answer would be too early."""
    LYING_SYNCS = {"offsets-fsync": f"*/{OFFSETS_TOPIC}-*.log"}

    def __init__(self, seed: int, ablation: str | None = None, *, keep_trace: bool = False) -> None:
        super().__init__(seed, ablation, keep_trace=keep_trace)
        self.records = History()
        self.history = GroupHistory()
        draw = self._random = self.node.random
        offsets_partitions = draw.choice((1, 2, 5))
        self.node.settings = replace(
            self.node.settings,
            group_min_session_timeout_ms=100,
            group_initial_rebalance_delay_ms=draw.choice((0, 100, 1000)),
            offsets_topic_num_partitions=offsets_partitions,
            offsets_topic_segment_bytes=draw.choice((1024, 2_000, 10_000)),
            # Small segments, compacted all the time, whose tombstones go as soon as they may.
            log_cleaner_backoff_ms=draw.choice((100, 1000)),
            topic_defaults=TopicSettings(
                segment_bytes=draw.choice((10_000, 1_000_000)),
                min_cleanable_dirty_ratio=draw.choice((0.0, 0.5)),
                delete_retention_ms=draw.choice((0, 1000, 86_400_000)),
            ),
        )
        self._topics = {f"topic-{number}": draw.randint(1, 4) for number in range(draw.randint(1, 2))}
        self._partitions = [(topic, index) for topic, count in self._topics.items() for index in range(count)]
        self.node.partitions = [
            *self._partitions,
            *((OFFSETS_TOPIC, index) for index in range(offsets_partitions)),
        ]
        self._groups = [f"group-{number}" for number in range(draw.randint(1, 3))]
        self._assignors = {group: draw.choice(ASSIGNORS) for group in self._groups}
        self._workers: list[GroupWorker] = []
        self._members: list[Process] = []
        self._sizes: dict[str, int] = {}
        self._is_calm = False
        self._pauses = self.node.simulation.random_for("pauses")
        self._twins: list[Process] = []
        """They take a static member's instance id while it runs; when all is calm there are none."""

    @classmethod
    def ablations(cls) -> tuple[str, ...]:
        return (*ABLATIONS, *super().ablations())

    def switched_off(self) -> AbstractContextManager[object]:
        switch = ABLATIONS.get(self.ablation or "")
        return super().switched_off() if switch is None else switch()

    async def play(self) -> None:
        node = self.node
        await node.boot()
        for topic, count in self._topics.items():
            await node.ask(partial(Client.create_topic, name=topic, partitions=count))
        self._make_workers()
        self._make_members()
        running = [node.clients[0].spawn(worker.run(), name=worker.name) for worker in self._workers]
        churning = asyncio.create_task(self._churn())
        await node.endure(REST_S_MAX)
        churning.cancel()
        with suppress(asyncio.CancelledError):
            await churning
        node.heal()
        await self._calm_down()
        await self._see_progress()
        for worker in self._workers:
            worker.stop()
        await asyncio.gather(*running)
        await self._find_ends()
        await self._settle()
        await node.restart()
        await self._settle()
        for member in self._members:
            member.stop()
        for member in self._members:
            await member.ended()
        await self._look_at_everything()
        await node.restart()
        await self._look_at_everything()
        self.records.logs = await node.read_everything(self._partitions)
        await node.stop()

    def violations(self) -> Iterable[object]:
        return [*check(self.records), *check_groups(self.history)]

    def count(self) -> None:
        counts = self.node.outcome.counts
        counts["records acknowledged"] = sum(send.is_acknowledged for send in self.records.sends)
        counts["records read"] = len(self.history.deliveries)
        counts["commits acknowledged"] = sum(commit.fate is Fate.DONE for commit in self.history.commits)
        counts["generations"] = len({sync.claim[:2] for sync in self.history.syncs})

    # Who takes part

    def _make_workers(self) -> None:
        draw, here = self._random, self._opener(self.node.clients[0])

        def parts(name: str) -> tuple[str, Open, random.Random]:
            return name, here, self.node.simulation.random_for(name)

        for number in range(draw.randint(1, 2)):
            self._workers.append(GroupProducer(*parts(f"producer-{number}"), self._partitions, self.records))
        for number in range(draw.randint(1, 2)):
            for clerk in range(draw.randint(1, 2)):
                name = f"clerk-{number}-{clerk}"
                self._workers.append(Clerk(*parts(name), f"alone-{number}", self._partitions))
        self._workers.append(Ghost(*parts("ghost"), self.history))
        if draw.random() < 0.5:
            self._workers.append(Passerby(*parts("passerby"), self._assignors, list(self._topics)))
        if draw.random() < 0.3:
            self._workers.append(Grower(*parts("grower"), self._partitions))
        self._workers.append(Keeper(*parts("keeper"), self._groups, self._partitions))

    def _make_members(self) -> None:
        draw = self._random
        for group in self._groups:
            is_static = draw.random() < 0.5
            self._sizes[group] = draw.randint(1, 4)
            for number in range(self._sizes[group]):
                plan = MemberPlan(
                    group,
                    list(self._topics),
                    self._assignors[group],
                    f"instance-{number}" if is_static and draw.random() < 0.8 else None,
                    session_timeout_ms=draw.choice((1500, 3000, 6000)),
                    poll_interval_max_ms=draw.choice((1000, 2000, 5000)),
                    commits_by_itself=draw.random() < 0.5,
                    pause=partial(self._pause, draw.choice((0.01, 0.01, 0.2)), draw.choice((0, 0.02))),
                )
                name = f"{group}-member-{number}"
                self._members.append(self._process(name, plan))
                if plan.instance is not None and draw.random() < 0.3:
                    self._twins.append(self._process(f"{name}-twin", plan))

    def _pause(self, usual_s: float, long_chance: float) -> float:
        """Between a member's polls: sometimes longer than it may take, and short when all is calm."""
        if self._is_calm:
            return 0.02
        if self._pauses.random() < long_chance:
            return self._pauses.uniform(0.5, 10)
        return self._pauses.uniform(0, usual_s)

    def _process(self, name: str, plan: MemberPlan) -> Process:
        lives = itertools.count()

        def make(host: Host) -> Program:
            label = f"{name}-{next(lives)}"
            randomness = self.node.simulation.random_for(label)
            return Member(label, self._opener(host), randomness, plan, self.history)

        return Process(self.node.add_client(name), make)

    def _opener(self, host: Host) -> Open:
        def open_cluster(client_id: str) -> WitnessedCluster:
            return WitnessedCluster(
                f"{self.node.server.name}:{PORT}",
                self.history,
                client_id=client_id,
                clock=host.platform.clock,
                random=host.platform.random,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                metadata_max_age_ms=METADATA_AGE_MS_MAX,
            )

        return open_cluster

    async def _churn(self) -> None:
        """Members come, go and are killed, until this is cancelled."""
        draw = self.node.simulation.random_for("churn")
        for member in self._members:
            member.start()
            await asyncio.sleep(draw.expovariate(1 / 0.1))
        while True:
            await asyncio.sleep(draw.uniform(0.1, 1.5))
            process = draw.choice([*self._members, *self._twins])
            if not process.is_running:
                process.start()
            elif draw.random() < 0.5:
                process.stop()
            else:
                process.kill()
                await asyncio.sleep(draw.choice((0.01, 0.5, 3)))
                process.start()

    # The end

    async def _calm_down(self) -> None:
        """From now on everybody stays who is there, and is quick."""
        self._is_calm = True
        for twin in self._twins:
            twin.kill()

        async def are_all_there() -> bool:
            for member in self._members:
                member.start()
            return all(member.is_staying for member in self._members)

        if not await self.node.wait_until(are_all_there):
            raise Broken("a consumer does not close")

    async def _see_progress(self) -> None:
        busy = [worker for worker in self._workers if worker.IS_BUSY]
        wanted = {worker.name: worker.made + PROGRESS_WANTED for worker in busy}
        stuck: list[str] = []

        async def is_over() -> bool:
            stuck[:] = [name for worker in busy if worker.made < wanted[name := worker.name]]
            return not stuck

        if not await self.node.wait_until(is_over):
            self.node.outcome.violated(f"no progress after healing: {', '.join(stuck)}")

    async def _find_ends(self) -> None:
        """Nobody produces any more. Topics may have grown without anybody having been told."""
        counts = await self.node.ask(Client.topics)
        self._partitions = [(topic, index) for topic in self._topics for index in range(counts[topic])]
        for partition in self._partitions:
            self.history.ends[partition] = await self.node.end_of(partition)

    async def _settle(self) -> None:
        """Waits until every group is at rest, and at the end of everything."""
        committed: dict[str, dict[Partition, int]] = {}

        async def are_settled() -> bool:
            async with self._opener(self.node.clients[0])("observer") as cluster:
                for group in self._groups:
                    self.history.settled[group] = await describe(cluster, group)
                    committed[group] = await look(cluster, group, self._partitions)
            return all(
                self._is_at_rest(group, self.history.settled[group]) and self._is_at_end(committed[group])
                for group in self._groups
            )

        if not await self.node.wait_until(lambda: self._asked(are_settled())):
            for group in self._groups:
                where = f"{self.history.settled[group]}, at {committed[group]} of {self.history.ends}"
                self.node.outcome.violated(f"{group} of {self._sizes[group]} does not settle: {where}")

    def _is_at_rest(self, group: str, settled: Settled) -> bool:
        owned = sorted(itertools.chain.from_iterable(settled.assignments.values()))
        return (
            settled.state == "Stable"
            and len(settled.assignments) == self._sizes[group]
            and owned == sorted(self._partitions)
        )

    def _is_at_end(self, committed: Mapping[Partition, int]) -> bool:
        return all(committed.get(partition, 0) == end for partition, end in self.history.ends.items())

    async def _look_at_everything(self) -> None:
        """The witness keeps what is found: it must agree with all that was seen before."""

        async def look_at_all() -> None:
            async with self._opener(self.node.clients[0])("observer") as cluster:
                for group in sorted({commit.claim.group for commit in self.history.commits}):
                    await look(cluster, group, self._partitions)

        await self._asked(look_at_all())

    async def _asked(self, question: Coroutine[Any, Any, T]) -> T:
        """Asks a node that must be well."""
        try:
            return await self.node.clients[0].run(question)
        except KafkaError as error:
            raise Broken(f"a healthy node did not answer: {error!r}") from error
