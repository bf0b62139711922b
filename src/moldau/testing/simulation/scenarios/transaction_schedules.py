"""Random schedules of transactions: the state machines of coordinator, leaders and producers without nodes.

Messages are delayed, duplicated, reordered and lost, producers fence each other, transactions time out, and coordinator
and leaders fail over. In the end all late messages arrive, and everything completes.
"""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256

from moldau.testing.simulation.ablations.transactions import SCHEDULE_ABLATIONS
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_transactions import (
    TransactionalRead,
    TransactionHistory,
    TransactionOutcome,
)
from moldau.testing.simulation.checkers.transactions import check_transactions
from moldau.testing.simulation.scenarios.outcome import SimulationOutcome
from moldau.testing.simulation.scenarios.scenario import Scenario
from moldau.testing.simulation.schedules.coordinator import ScheduledCoordinator
from moldau.testing.simulation.schedules.frequencies import ScheduleFrequencies
from moldau.testing.simulation.schedules.leader import ScheduledLeader
from moldau.testing.simulation.schedules.network import InFlightMessage, ScheduledNetwork
from moldau.testing.simulation.schedules.producer import TIMEOUT_MS, ScheduledProducer
from moldau.transactions.transaction_metadata import PRODUCER_EPOCH_MAX, TV0, TV2, TransactionMetadata, TransactionState

STEPS = 400
PRODUCERS_MAX = 8
IDS = ("t", "u")
PARTITIONS = (("p", 0), ("p", 1), ("q", 0))
SETTLE_ROUNDS_MAX = 30
FETCH_BYTES = (100, 300, 1 << 20)
ANOTHER_RECORD_CHANCE = 0.6


class TransactionSchedule(Scenario):
    NAME = "transaction-schedules"
    SWITCHES = {name: ablation.switch for name, ablation in SCHEDULE_ABLATIONS.items()}

    def __init__(self, seed: int, ablation: str | None = None) -> None:
        super().__init__(seed, ablation)
        draw = self._random = random.Random(f"{seed}/schedule")
        self._frequencies = ScheduleFrequencies.drawn(draw)
        if ablation is not None:
            self._frequencies = replace(self._frequencies, **SCHEDULE_ABLATIONS[ablation].frequencies)
        self.outcome = SimulationOutcome(self.NAME, seed, "messages")
        self.history = TransactionHistory()
        self.network = ScheduledNetwork()
        self.coordinator = ScheduledCoordinator(self.network)
        self.leaders = [ScheduledLeader(each, self.network, self.coordinator) for each in PARTITIONS]
        self.coordinator.leaders = {each.partition: each for each in self.leaders}
        self.producers: list[ScheduledProducer] = []
        self._stable_offsets: dict[Partition, int] = {}
        """The last stable offset of each partition, as last seen."""
        self._is_late: dict[InFlightMessage, bool] = {}
        """Which messages arrive long after others."""
        self._events: list[str] = []

    def run(self) -> SimulationOutcome:
        outcome = self.outcome
        with self.SWITCHES[self.ablation]() if self.ablation else nullcontext():
            try:
                self._run()
                outcome.violations += map(str, check_transactions(self.history))
            except AssertionError as error:
                outcome.add_violation(f"{type(error).__name__}: {error}")
        outcome.notable_events = self._events
        outcome.trace_hash = sha256("\n".join(self._events).encode()).hexdigest()
        outcome.virtual_ms = self.coordinator.now_ms
        outcomes = Counter(each.outcome for each in self.history.transactions)
        for each in TransactionOutcome:
            outcome.counts[f"transactions {each.value}"] = outcomes[each]
        return outcome

    def _run(self) -> None:
        if self._random.random() < 0.2:
            self._exhaust_epochs()
        for _ in range(STEPS):
            self._step()
            self._check()
            if self.outcome.violations:
                return
        self._settle()

    def _exhaust_epochs(self) -> None:
        """Lets the transactional ids begin shortly before the end of their epochs."""
        for number, transactional_id in enumerate(IDS):
            metadata = TransactionMetadata(
                producer_id=number,
                producer_epoch=PRODUCER_EPOCH_MAX - 4,
                timeout_ms=TIMEOUT_MS,
                state=TransactionState.EMPTY,
                last_update_ms=self.coordinator.now_ms,
            )
            self.coordinator.put(transactional_id, metadata)

    # Steps

    def _step(self) -> None:
        draw, weights = self._random, self._frequencies
        actions: list[tuple[float, Callable[[], None]]] = [
            (weights.replication, self.coordinator.replicate),
            (weights.failover, self._fail_coordinator_over),
            (weights.timeout, lambda: self._pass_time(draw.choice((1, TIMEOUT_MS // 2, TIMEOUT_MS + 1)))),
            (0.5, self.coordinator.resend_markers),
            (weights.replication, lambda: draw.choice(self.leaders).replicate()),
            (weights.failover, self._fail_leader_over),
            (weights.crash, self._crash_producer),
            (2, lambda: self._read(draw.choice(self.leaders))),
            (12, self._run_producer),
        ]
        for message in self.network.in_flight:
            if message not in self._is_late:
                # A late start fences the producers after it, which then do nothing of interest.
                chance = weights.late_chance / 10 if "start" in message.name else weights.late_chance
                self._is_late[message] = draw.random() < chance
        in_time = [each for each in self.network.in_flight if not self._is_late[each]]
        late = [each for each in self.network.in_flight if self._is_late[each]]
        if in_time:
            actions += [(40, lambda: self._deliver(in_time[0])), (0.3, lambda: self._lose(draw.choice(in_time)))]
        if late:
            actions.append((weights.late_delivery, lambda: self._deliver(draw.choice(late))))
        if len(self.producers) < PRODUCERS_MAX:
            actions.append(
                (weights.start if any(not each.is_dead for each in self.producers) else 20, self._add_producer)
            )
        draw.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()

    def _deliver(self, message: InFlightMessage) -> None:
        duplicate = self._random.random() < 0.05 and "start" not in message.name and not message.is_unique
        if duplicate:
            self._is_late[message] = True
        self._note(f"{'duplicates' if duplicate else 'delivers'} {message.name}")
        self.network.deliver(message, duplicate=duplicate)

    def _lose(self, message: InFlightMessage) -> None:
        self._note(f"loses {message.name}")
        self.network.drop(message)

    def _add_producer(self) -> None:
        draw, name = self._random, f"producer-{len(self.producers)}"
        version = TV0 if draw.random() < self._frequencies.tv1_chance else TV2
        producer = ScheduledProducer(
            name, draw.choice(IDS), self.network, self.coordinator, self.history, client_version=version
        )
        self.producers.append(producer)
        self._note(f"{name} starts as {producer.transactional_id!r}, TV{version or 1}")
        producer.start()

    def _run_producer(self) -> None:
        if not self.producers:
            return
        draw = self._random
        living = [each for each in self.producers if not each.is_dead]
        if not living:
            return
        producer = draw.choice(living)
        if producer.identity is None:
            if draw.random() < 0.1:
                producer.start()
            return
        if producer.ending is not None:
            if draw.random() < 0.3:
                producer.end_again()
            return
        if producer.must_abort or (producer.can_abort and draw.random() < 0.02):
            if producer.can_abort:
                self._note(f"{producer.name} aborts")
                producer.abort()
            return
        records = 0 if producer.operation is None else len(producer.operation.records)
        leaders = [each for each in self.leaders if each.partition not in producer.unacknowledged_partitions]
        if producer.unacknowledged_partitions and draw.random() < 0.2:
            producer.resend(draw.choice(producer.unacknowledged_partitions))
        elif not records or (leaders and draw.random() < ANOTHER_RECORD_CHANCE**records):
            leader = draw.choice(leaders)
            self._note(f"{producer.name} sends to {leader}")
            producer.send(leader)
        elif producer.can_commit:
            self._note(f"{producer.name} commits")
            producer.commit()

    def _crash_producer(self) -> None:
        living = [each for each in self.producers if not each.is_dead]
        if living:
            producer = self._random.choice(living)
            self._note(f"{producer.name} crashes")
            producer.is_dead = True

    def _pass_time(self, elapsed_ms: int) -> None:
        self._note(f"{elapsed_ms} ms pass")
        self.coordinator.pass_time(elapsed_ms)

    def _fail_coordinator_over(self) -> None:
        self._note("coordinator fails over")
        self.coordinator.fail_over(self._random.choice((0, 0, 1, 3)))

    def _fail_leader_over(self) -> None:
        leader = self._random.choice(self.leaders)
        self._note(f"leader of {leader} fails over")
        leader.fail_over(self._random.randint(leader.high_watermark, leader.log.end_offset))

    def _read(self, leader: ScheduledLeader) -> None:
        at = self.history.next_event()
        reads = self.history.committed_reads.setdefault(("reader", leader.partition), [])
        found = leader.read_committed(self._random.choice(FETCH_BYTES))
        reads += [TransactionalRead(at, offset, value) for offset, value in found]

    def _note(self, event: str) -> None:
        self._events.append(event)

    # Checks

    def _check(self) -> None:
        for leader in self.leaders:
            stable = leader.last_stable_offset
            before = self._stable_offsets.get(leader.partition, 0)
            if stable > leader.high_watermark:
                self.outcome.add_violation(f"{leader} is stable up to {stable} of {leader.high_watermark}")
            # A leader has the high watermark of the leader before it here, so this holds even between leaders.
            if stable < before:
                self.outcome.add_violation(f"the last stable offset of {leader} fell from {before} to {stable}")
            self._stable_offsets[leader.partition] = stable

    def _settle(self) -> None:
        """Delivers all late messages, ends all transactions by their timeout, and reads everything."""
        self._note("everything arrives")
        for _ in range(SETTLE_ROUNDS_MAX):
            self._deliver_all()
            self.coordinator.resend_markers()
            self.coordinator.pass_time(TIMEOUT_MS + 1)
            self._deliver_all()
            self._check()
            unfinished = [each for each in IDS if (found := self.coordinator.get(each)) and not found.is_idle]
            if not self.network.in_flight and not unfinished and not self.coordinator.has_pending_markers:
                break
        else:
            states = {each: self.coordinator.get(each) for each in IDS}
            self.outcome.add_violation(f"transactions do not end: {states}")
        for leader in self.leaders:
            if leader.last_stable_offset < leader.high_watermark:
                offsets = f"{leader.last_stable_offset} of {leader.high_watermark}"
                self.outcome.add_violation(f"a transaction hangs in {leader}, which is stable up to {offsets}")
            while leader.read_position < leader.last_stable_offset:
                self._read(leader)
            self.history.logs[leader.partition] = leader.content()

    def _deliver_all(self) -> None:
        self._replicate_all()
        for _ in range(SETTLE_ROUNDS_MAX):
            if not self.network.in_flight:
                return
            messages = list(self.network.in_flight)
            self._random.shuffle(messages)
            for message in messages:
                if message in self.network.in_flight:
                    self.network.deliver(message)
            self._replicate_all()

    def _replicate_all(self) -> None:
        self.coordinator.replicate()
        for leader in self.leaders:
            leader.replicate()
