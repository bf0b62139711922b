"""Raft state machines under random faults: safety holds throughout, and progress resumes after the faults."""

import random

import pytest

from moldau.raft.epoch_roles import ElectionState
from moldau.raft.leader_state import LeaderState, ReplicaState
from moldau.raft.messages import ReplicaKey
from moldau.raft.quorum_fetcher import QuorumFetcher
from moldau.raft.quorum_state import QuorumState
from moldau.raft.step_context import StepContext
from support.quorum_simulation import Faults, QuorumSimulation, voter

MANY_FAULTS = Faults(loss=0.05, duplication=0.05, delay=0.05)
SEEDS = range(60)


def run_with_faults(seed: int, *, rounds: int = 60, faults: Faults = MANY_FAULTS) -> QuorumSimulation:
    """Runs many rounds with every kind of fault; safety properties are checked after every step."""
    chance = random.Random(seed)
    count = chance.choice((1, 2, 3, 3, 3, 5))
    simulation = QuorumSimulation(seed, count, count + 2, faults)
    for node_id in simulation.disks:
        simulation.skew[node_id] = chance.randint(0, 100_000)
        simulation.start(node_id)
    appended = 0
    for _ in range(rounds):
        simulation.run(chance.choice((1, 5, 20, 100, 500, 2_000)))
        simulation.check_logs_match()
        up = sorted(simulation.states)
        down = sorted(set(simulation.disks) - set(up))
        roll = chance.random()
        if roll < 0.12 and up:
            simulation.crash(chance.choice(up))
        elif roll < 0.15:
            for node_id in up:
                simulation.crash(node_id)
        elif roll < 0.35 and down:
            simulation.start(chance.choice(down))
        elif roll < 0.42:
            side = {node_id for node_id in simulation.disks if chance.random() < 0.5}
            simulation.disconnected = {
                (a, b) for a in simulation.disks for b in simulation.disks if (a in side) != (b in side)
            }
        elif roll < 0.47:
            simulation.disconnected = {
                (a, b) for a in simulation.disks for b in simulation.disks if chance.random() < 0.3
            }
        elif roll < 0.55:
            simulation.disconnected = set()
        elif roll < 0.60 and up:
            simulation.create_snapshot(chance.choice(up))
        elif roll < 0.64 and up:
            simulation.resign(chance.choice(up))
        elif roll < 0.70:
            change_voters(simulation, chance)
        for node_id in sorted(simulation.states):
            if simulation.states[node_id].is_leader:
                for _ in range(chance.randint(0, 3)):
                    appended += 1
                    simulation.append_value(node_id, f"value {appended}")
    return simulation


def change_voters(simulation: QuorumSimulation, chance: random.Random) -> None:
    leader = simulation.leader()
    if leader is None:
        return
    voters = [each.node_id for each in simulation.states[leader].quorum.voters]
    node_id = chance.choice(sorted(simulation.disks))
    now_ms = simulation.now_ms + simulation.skew[leader]
    if node_id in voters:
        simulation.change_voters(leader, lambda state: state.quorum.require_leader().without_voter(voter(node_id).key))
    else:
        simulation.change_voters(leader, lambda state: state.quorum.require_leader().with_voter(now_ms, voter(node_id)))


def check_recovery(simulation: QuorumSimulation) -> None:
    simulation.faults, simulation.disconnected, simulation.is_flushing = Faults(), set(), True
    for node_id in sorted(simulation.states):
        simulation.crash(node_id)
    for node_id in sorted(simulation.disks):
        simulation.start(node_id)
    assert simulation.run(20_000, until=lambda: is_settled(simulation)), "no leader"
    # A leader that is being removed resigns once the removal is committed.
    simulation.run(3_000)
    leader = simulation.leader()
    assert leader is not None
    elections = simulation.counts["elections"]
    simulation.append_value(leader, "after the faults")
    end = simulation.disks[leader].end
    assert simulation.run(
        5_000, until=lambda: all(state.log.high_watermark >= end for state in simulation.states.values())
    ), "the append is not committed"
    simulation.run(10_000)
    assert simulation.counts["elections"] == elections, "an election without faults"
    simulation.check_logs_match()


def is_settled(simulation: QuorumSimulation) -> bool:
    leader = simulation.leader()
    return leader is not None and all(state.leader_id == leader for state in simulation.states.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_committed_records_survive_all_faults_and_the_quorum_recovers(seed: int) -> None:
    check_recovery(run_with_faults(seed))


def test_every_kind_of_event_happens_in_the_simulations() -> None:
    totals: dict[str, int] = {}
    for seed in SEEDS:
        for what, count in run_with_faults(seed).counts.items():
            totals[what] = totals.get(what, 0) + count
    assert all(count > 10 for count in totals.values()), totals


def is_detected(faults: Faults = MANY_FAULTS) -> bool:
    for seed in range(300):
        try:
            run_with_faults(seed, faults=faults)
        except AssertionError:
            return True
    return False


def test_a_vote_for_an_outdated_log_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumState, "is_up_to_date", lambda self, log_end: True)
    assert is_detected()


def test_a_vote_that_is_not_persisted_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: QuorumSimulation, node_id: int, election: ElectionState) -> None:
        pass

    monkeypatch.setattr(QuorumSimulation, "_persist", forget)
    assert is_detected()


def test_a_follower_that_confirms_unflushed_records_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = QuorumFetcher.fetch
    append = QuorumSimulation.append

    def fetch_as_if_durable(self: QuorumFetcher, step: StepContext) -> None:
        self.quorum.log.durable_offset = self.quorum.log.end_offset
        fetch(self, step)

    def append_and_fetch(self: QuorumSimulation, node_id: int, entries: list) -> None:  # type: ignore[type-arg]
        append(self, node_id, entries)
        state = self.states[node_id]
        step = StepContext(state._step.now_ms, state._step.random_fraction)
        state.fetcher.fetch(step)
        for effect in step.effects:
            self.execute(node_id, effect)

    monkeypatch.setattr(QuorumFetcher, "fetch", fetch_as_if_durable)
    monkeypatch.setattr(QuorumSimulation, "append", append_and_fetch)
    assert is_detected()


def test_a_leader_that_counts_a_delayed_fetch_as_a_confirmation_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    record_contact = LeaderState.record_contact

    def record_contact_now(self: LeaderState, key: ReplicaKey, now_ms: int, leader_sent_ms: int) -> ReplicaState:
        return record_contact(self, key, now_ms, now_ms)

    monkeypatch.setattr(LeaderState, "record_contact", record_contact_now)
    assert is_detected(Faults(loss=0.05, duplication=0.2, delay=0.2))


def test_a_voter_that_overstates_how_long_it_had_no_leader_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumState, "leader_silence_ms", lambda self, now_ms: 2 * self.config.fetch_timeout_ms)
    assert is_detected()


def test_a_leader_that_announces_an_uncertain_high_watermark_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderState, "announced_high_watermark", property(lambda self: self.log.high_watermark))
    assert is_detected()


def test_without_pre_vote_a_reconnected_node_deposes_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    def elections_after_a_partition() -> int:
        simulation = QuorumSimulation(1, 3)
        for node_id in simulation.disks:
            simulation.start(node_id)
        assert simulation.run(5_000, until=lambda: is_settled(simulation))
        simulation.run(1_000)
        leader = simulation.leader()
        away = next(node_id for node_id in simulation.disks if node_id != leader)
        elections = simulation.counts["elections"]
        simulation.disconnected = {(away, node_id) for node_id in simulation.disks} | {
            (node_id, away) for node_id in simulation.disks
        }
        simulation.run(10_000)
        simulation.disconnected = set()
        simulation.run(10_000)
        return simulation.counts["elections"] - elections

    assert elections_after_a_partition() == 0
    monkeypatch.setattr(QuorumState, "needs_pre_vote", lambda self: False)
    assert elections_after_a_partition() > 0
