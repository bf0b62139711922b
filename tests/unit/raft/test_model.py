"""Several quorum state machines under fire: whatever is lost, doubled, late or torn, no agreement is broken; and when
the faults end, the quorum works again."""

import random

import pytest

from moldau.raft.events import ElectionState
from moldau.raft.leader_state import Leadership, ReplicaState
from moldau.raft.messages import ReplicaKey
from moldau.raft.state import QuorumState
from support.quorum_world import Faults, World, voter

STORMY = Faults(loss=0.05, doubling=0.05, lateness=0.05)
SEEDS = range(60)


def under_fire(seed: int, *, rounds: int = 60, faults: Faults = STORMY) -> World:
    """A safety phase with every kind of fault, then a phase without, which must make progress."""
    chance = random.Random(seed)
    count = chance.choice((1, 2, 3, 3, 3, 5))
    world = World(seed, count, count + 2, faults)
    for node_id in world.disks:
        world.skew[node_id] = chance.randint(0, 100_000)
        world.start(node_id)
    appended = 0
    for _ in range(rounds):
        world.run(chance.choice((1, 5, 20, 100, 500, 2_000)))
        world.logs_match()
        up = sorted(world.states)
        down = sorted(set(world.disks) - set(up))
        roll = chance.random()
        if roll < 0.12 and up:
            world.crash(chance.choice(up))
        elif roll < 0.15:
            for node_id in up:
                world.crash(node_id)
        elif roll < 0.35 and down:
            world.start(chance.choice(down))
        elif roll < 0.42:
            side = {node_id for node_id in world.disks if chance.random() < 0.5}
            world.cut = {(a, b) for a in world.disks for b in world.disks if (a in side) != (b in side)}
        elif roll < 0.47:
            world.cut = {(a, b) for a in world.disks for b in world.disks if chance.random() < 0.3}
        elif roll < 0.55:
            world.cut = set()
        elif roll < 0.60 and up:
            world.make_snapshot(chance.choice(up))
        elif roll < 0.64 and up:
            world.leave(chance.choice(up))
        elif roll < 0.70:
            change_voters(world, chance)
        for node_id in sorted(world.states):
            if world.states[node_id].is_leader:
                for _ in range(chance.randint(0, 3)):
                    appended += 1
                    world.append_value(node_id, f"value {appended}")
    return world


def change_voters(world: World, chance: random.Random) -> None:
    leader = world.leader()
    if leader is None:
        return
    voters = [each.node_id for each in world.states[leader].voters]
    node_id = chance.choice(sorted(world.disks))
    now_ms = world.now_ms + world.skew[leader]
    if node_id in voters:
        world.change_voters(leader, lambda state: state.without_voter(voter(node_id).key))
    else:
        world.change_voters(leader, lambda state: state.with_voter(now_ms, voter(node_id)))


def heal(world: World) -> None:
    world.faults, world.cut, world.syncs = Faults(), set(), True
    for node_id in sorted(world.states):
        world.crash(node_id)
    for node_id in sorted(world.disks):
        world.start(node_id)
    assert world.run(20_000, until=lambda: settled(world)), "no leader"
    # A leader whose own removal was under way goes when that is agreed on.
    world.run(3_000)
    leader = world.leader()
    assert leader is not None
    elections = world.counts["elections"]
    world.append_value(leader, "after the storm")
    end = world.disks[leader].end
    assert world.run(
        5_000, until=lambda: all(state.high_watermark >= end for state in world.states.values())
    ), "what is appended is not agreed on"
    world.run(10_000)
    assert world.counts["elections"] == elections, "a quorum without faults elects nobody anew"
    world.logs_match()


def settled(world: World) -> bool:
    leader = world.leader()
    return leader is not None and all(state.leader_id == leader for state in world.states.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_agreements_survive_every_fault_and_the_quorum_recovers(seed: int) -> None:
    heal(under_fire(seed))


def test_the_storm_is_one() -> None:
    """Each kind of event that the model is there for happens in it."""
    totals: dict[str, int] = {}
    for seed in SEEDS:
        for what, count in under_fire(seed).counts.items():
            totals[what] = totals.get(what, 0) + count
    assert all(count > 10 for count in totals.values()), totals


def is_caught(faults: Faults = STORMY) -> bool:
    for seed in range(300):
        try:
            under_fire(seed, faults=faults)
        except AssertionError:
            return True
    return False


def test_a_vote_for_a_log_that_is_behind_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumState, "_is_up_to_date", lambda self, log_end: True)
    assert is_caught()


def test_a_vote_that_is_not_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: World, node_id: int, election: ElectionState) -> None:
        pass

    monkeypatch.setattr(World, "_persist", forget)
    assert is_caught()


def test_a_follower_that_counts_what_it_has_not_synced_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def durable_at_once(self: QuorumState) -> None:
        self.log.durable_offset = self.log.end_offset
        fetch(self)

    fetch = QuorumState._fetch
    append = World.append

    def append_and_fetch(self: World, node_id: int, entries: list) -> None:  # type: ignore[type-arg]
        append(self, node_id, entries)
        state = self.states[node_id]
        state._effects = []
        state._fetch()
        for effect in state._effects:
            self.perform(node_id, effect)

    monkeypatch.setattr(QuorumState, "_fetch", durable_at_once)
    monkeypatch.setattr(World, "append", append_and_fetch)
    assert is_caught()


def test_a_leader_that_takes_a_late_fetch_for_a_confirmation_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record_contact = Leadership.record_contact

    def heard_now(self: Leadership, key: ReplicaKey, now_ms: int, leader_sent_ms: int) -> ReplicaState:
        return record_contact(self, key, now_ms, now_ms)

    monkeypatch.setattr(Leadership, "record_contact", heard_now)
    assert is_caught(Faults(loss=0.05, doubling=0.2, lateness=0.2))


def test_a_voter_that_says_it_heard_of_nobody_for_longer_than_it_did_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(QuorumState, "_leader_silence_ms", lambda self: 2 * self.settings.fetch_timeout_ms)
    assert is_caught()


def test_a_leader_that_announces_what_it_is_not_sure_of_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumState, "announced_high_watermark", property(lambda self: self.high_watermark))
    assert is_caught()


def test_without_asking_first_a_node_that_was_away_deposes_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def elections_after_a_node_was_cut_off() -> int:
        world = World(1, 3)
        for node_id in world.disks:
            world.start(node_id)
        assert world.run(5_000, until=lambda: settled(world))
        world.run(1_000)
        leader = world.leader()
        away = next(node_id for node_id in world.disks if node_id != leader)
        elections = world.counts["elections"]
        world.cut = {(away, node_id) for node_id in world.disks} | {
            (node_id, away) for node_id in world.disks
        }
        world.run(10_000)
        world.cut = set()
        world.run(10_000)
        return world.counts["elections"] - elections

    assert elections_after_a_node_was_cut_off() == 0
    monkeypatch.setattr(QuorumState, "_needs_pre_vote", lambda self: False)
    assert elections_after_a_node_was_cut_off() > 0
