"""Random walks over broker and admin events keep the partition invariants and lose no committed record."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest

from moldau.controller.elections import (
    balance_partition_leaders,
    can_controller_lead_more,
    elect_unclean_leaders,
    move_leaders_to_controller,
    unclean_election_candidates,
)
from moldau.controller.partition_change_builder import RetainedData
from moldau.controller.partition_index import PartitionIndex, PartitionName
from moldau.controller.reassignment import add_replicas
from moldau.controller.requests import ElectionType
from moldau.metadata.image import NO_LEADER, PartitionRegistration
from moldau.metadata.records import NO_LEADER_CHANGE, PartitionChangeRecord
from moldau.raft.messages import EpochEndOffset
from support.partition_decisions import ControlledCluster

BROKERS = (1, 2, 3, 4, 5)
STEPS = 400
ORDERS = PartitionName("orders", 0)

Candidates = Mapping[PartitionName, tuple[int, ...]]


class AnyCluster:
    """One partition and its replicas' logs, of which only the length counts. A crash loses records only where they are
    not synced before they count; a disk that is replaced holds nothing, or what it held some time ago. A leader commits
    as it may: what all of the in-sync set has, while nobody else is eligible."""

    def __init__(self, seed: int, *, follows_controller: bool = False) -> None:
        self.random = random.Random(seed)
        self.cluster = ControlledCluster(BROKERS, controller_id=1)
        self.follows_controller = follows_controller
        self.min_isr = self.random.randint(1, 3)
        self.unclean = self.random.random() < 0.3
        self.write_caching = self.random.random() < 0.3
        self.cluster.create("orders", self.some(BROKERS, 4))
        self.cluster.configure("orders", "min.insync.replicas", str(self.min_isr))
        self.cluster.configure("orders", "unclean.leader.election.enable", str(self.unclean).lower())
        self.cluster.configure("orders", "write.caching", str(self.write_caching).lower())
        if follows_controller:
            self.cluster.configure("orders", "leader.follows.controller", "true")
        self.log = dict.fromkeys(BROKERS, 0)
        self.committed = 0
        self.lost_records: set[int] = set()
        """Replicas that may have lost records since they were last in the ISR."""
        self.before = self.partition
        self.seen: Counter[str] = Counter()

    @property
    def partition(self) -> PartitionRegistration:
        return self.cluster.partition()

    def is_active(self, broker_id: int) -> bool:
        return self.cluster.state.image.brokers[broker_id].is_active

    def some(self, of: tuple[int, ...], count_max: int) -> list[int]:
        return self.random.sample(of, self.random.randint(1, min(count_max, len(of))))

    def one(self) -> int:
        """Returns mostly a broker with a replica."""
        return self.random.choice(self.partition.replicas if self.random.random() < 0.8 else BROKERS)

    def step(self) -> str:
        does = self.random.choice(
            [
                self.dies_or_falls_silent,
                self.dies_or_falls_silent,
                self.shuts_down,
                self.restarts_cleanly,
                self.crashes_and_restarts,
                self.comes_back_with_another_disk,
                self.is_taken_in,
                self.is_taken_in,
                self.is_taken_in,
                self.appends_and_commits,
                self.appends_and_commits,
                self.alters_its_in_sync_set,
                self.alters_its_in_sync_set,
                self.alters_its_in_sync_set,
                self.is_reassigned,
                self.is_given_back_to_its_preferred_leader,
                self.is_balanced,
                self.is_led_uncleanly_where_allowed,
                self.is_led_uncleanly_because_somebody_wants_it,
                *(self.controller_events if self.follows_controller else ()),
            ]
        )
        self.cluster.last_records = ()
        does()
        return does.__name__

    @property
    def controller_events(self) -> Sequence[Callable[[], None]]:
        return [
            self.has_another_controller,
            self.has_another_controller,
            self.follows_the_controller,
            self.follows_the_controller,
            self.is_or_is_not_to_follow,
            self.gets_all_brokers,
            *[self.are_all_in_sync] * 6,
        ]

    # Broker events

    def dies_or_falls_silent(self) -> None:
        broker_id = self.one()
        if not self.cluster.state.image.brokers[broker_id].fenced:
            self.cluster.fence(broker_id)

    def shuts_down(self) -> None:
        broker_id = self.one()
        if self.is_active(broker_id):
            self.cluster.shut_down(broker_id)

    def restarts_cleanly(self) -> None:
        self.registers_anew(self.one(), RetainedData.ALL)

    def crashes_and_restarts(self) -> None:
        broker_id, before = self.one(), self.partition
        if self.write_caching:
            self.loses_records(broker_id)
        self.registers_anew(broker_id, RetainedData.SYNCED)
        if before.isr == (broker_id,) == self.partition.isr:
            # Without fsync these records are lost if no other replica has them.
            self.seen["the last in sync has crashed"] += 1
            self.committed = min(self.committed, self.log[broker_id])
        if broker_id in before.isr and broker_id in self.partition.elr:
            self.seen["who crashed becomes eligible"] += 1

    def comes_back_with_another_disk(self) -> None:
        broker_id = self.one()
        self.loses_records(broker_id)
        self.registers_anew(broker_id, RetainedData.NONE)
        self.seen["nobody is left who has everything"] += not self.partition.isr

    def loses_records(self, broker_id: int) -> None:
        self.log[broker_id] = self.random.choice((0, self.random.randint(0, self.log[broker_id])))
        self.lost_records.add(broker_id)

    def registers_anew(self, broker_id: int, kept: RetainedData) -> None:
        before = self.partition
        self.cluster.register(broker_id, kept)
        if before.isr == (broker_id,) != self.partition.isr and self.partition.isr:
            self.seen["an eligible replica takes the place of the last in sync"] += 1

    def is_taken_in(self) -> None:
        broker_id = self.one()
        if self.cluster.state.image.brokers[broker_id].fenced:
            self.cluster.unfence(broker_id)

    # Leader events

    def appends_and_commits(self) -> None:
        partition = self.partition
        if partition.leader == NO_LEADER:
            return
        self.log[partition.leader] = self.committed + 1
        enough = len(partition.isr) >= partition.min_isr(self.min_isr)
        if enough and not partition.elr:
            self.committed += 1
            for broker_id in partition.isr:
                self.log[broker_id] = self.committed

    def alters_its_in_sync_set(self) -> None:
        partition = self.partition
        if partition.leader == NO_LEADER:
            return
        members = self.some(partition.replicas, len(partition.replicas))
        if partition.leader not in members:
            members.append(partition.leader)
        result = self.cluster.alter(members)
        if result.leader != NO_LEADER:
            self.seen["altered"] += 1
            for broker_id in members:
                self.log[broker_id] = max(self.log[broker_id], self.committed)
                self.lost_records.discard(broker_id)
            if result.error is not None:
                self.seen["a reassignment ends with another leader"] += 1

    # Admin and controller events

    def is_reassigned(self) -> None:
        was_reassigning = self.partition.is_reassigning
        replicas = None if self.random.random() < 0.3 else self.some(BROKERS, 4)
        if self.cluster.reassign(replicas).error is None:
            self.seen["cancelled" if replicas is None else "reassigned"] += 1
            self.seen["reassigned while under way"] += was_reassigning and replicas is not None

    def is_given_back_to_its_preferred_leader(self) -> None:
        self.cluster.elect(ElectionType.PREFERRED)

    def is_balanced(self) -> None:
        self.cluster.do(balance_partition_leaders(self.cluster.state))

    def is_led_uncleanly_where_allowed(self) -> None:
        candidates = unclean_election_candidates(self.cluster.state)
        assert self.unclean or not candidates
        self.cluster.do(elect_unclean_leaders(self.cluster.state, self.ends_of(candidates)))
        self.is_led_uncleanly(candidates)

    def is_led_uncleanly_because_somebody_wants_it(self) -> None:
        candidates = unclean_election_candidates(self.cluster.state, [ORDERS])
        self.seen["led uncleanly though nobody was in sync"] += bool(candidates) and not self.partition.isr
        self.cluster.elect(ElectionType.UNCLEAN, ORDERS, log_ends=self.ends_of(candidates))
        self.is_led_uncleanly(candidates)

    def ends_of(self, candidates: Candidates) -> dict[PartitionName, dict[int, EpochEndOffset]]:
        return {
            name: {broker_id: EpochEndOffset(0, self.log[broker_id]) for broker_id in live}
            for name, live in candidates.items()
        }

    def is_led_uncleanly(self, candidates: Candidates) -> None:
        for live in candidates.values():
            leader = self.partition.leader
            assert self.log[leader] == max(self.log[broker_id] for broker_id in live)
            assert self.partition.unclean_epoch == self.partition.leader_epoch
            self.committed = min(self.committed, self.log[leader])
            self.lost_records.discard(leader)
            self.seen["led uncleanly"] += 1

    def has_another_controller(self) -> None:
        self.cluster.become_controller(self.random.choice(BROKERS))

    def follows_the_controller(self) -> None:
        state = self.cluster.state
        can_lead = can_controller_lead_more(state)
        self.cluster.do(move_leaders_to_controller(state))
        assert bool(self.cluster.last_records) == can_lead
        assert not can_controller_lead_more(state)
        if can_lead:
            assert self.partition.leader == state.image.controller_id
            self.seen["moved to the controller"] += 1

    def are_all_in_sync(self) -> None:
        """All brokers come back one by one, and the leader takes them into the ISR."""
        for broker_id in BROKERS:
            if self.cluster.state.image.brokers[broker_id].fenced:
                self.cluster.unfence(broker_id)
                self.check()
        self.cluster.last_records = ()
        partition = self.partition
        if partition.leader != NO_LEADER and all(map(self.is_active, partition.replicas)):
            self.cluster.alter(partition.replicas)
            for broker_id in partition.replicas:
                self.log[broker_id] = max(self.log[broker_id], self.committed)
                self.lost_records.discard(broker_id)

    def is_or_is_not_to_follow(self) -> None:
        self.cluster.configure("orders", "leader.follows.controller", self.random.choice(("true", "true", "false")))

    def gets_all_brokers(self) -> None:
        was_reassigning = self.partition.is_reassigning
        self.cluster.apply(add_replicas(self.cluster.state, ["orders"], BROKERS))
        assert set(self.partition.replicas) - set(self.partition.removing_replicas) == set(BROKERS)
        self.seen["got all brokers while under way"] += was_reassigning and bool(self.cluster.last_records)

    # Invariants

    def check(self) -> None:
        partition = self.partition
        self.check_members(partition)
        self.check_who_has_everything_committed(partition)
        self.check_epochs(self.before, partition)
        self.check_index()
        self.seen["elected from the eligible"] += (
            partition.leader in self.before.elr and self.before.leader == NO_LEADER
        )
        self.before = partition

    def check_members(self, partition: PartitionRegistration) -> None:
        isr, elr = partition.isr, partition.elr
        if not isr:
            assert partition.leader == NO_LEADER
            assert not elr
            assert set(partition.last_known_elr) & self.lost_records, (
                "only replicas that lost records leave the ISR empty"
            )
        if partition.leader != NO_LEADER:
            assert partition.leader in isr
            assert all(map(self.is_active, isr))
        assert len(set(partition.replicas)) == len(partition.replicas)
        assert set(isr) <= set(partition.replicas)
        assert set(elr) <= set(partition.replicas) - set(isr)
        assert set(partition.adding_replicas) <= set(partition.replicas)
        assert set(partition.removing_replicas) <= set(partition.replicas) - set(partition.adding_replicas)
        if partition.is_reassigning and partition.leader != NO_LEADER:
            staying = set(partition.replicas) - set(partition.removing_replicas)
            assert not staying <= set(isr), "otherwise it would be complete"
        may_lead = [each for each in (*isr, *elr) if self.is_active(each)]
        assert (partition.leader != NO_LEADER) == bool(may_lead)

    def check_who_has_everything_committed(self, partition: PartitionRegistration) -> None:
        assert not set(partition.elr) & self.lost_records
        assert not partition.elr or len(partition.isr) < partition.min_isr(self.min_isr)
        for broker_id in (*partition.isr, *partition.elr):
            assert self.log[broker_id] >= self.committed

    def check_epochs(self, before: PartitionRegistration, after: PartitionRegistration) -> None:
        written = [each for each in self.cluster.last_records if isinstance(each, PartitionChangeRecord)]
        named = sum(record.leader != NO_LEADER_CHANGE for record in written)
        assert after.leader_epoch - before.leader_epoch == named
        assert after.partition_epoch - before.partition_epoch == len(written)
        assert bool(written) == (after != before), "a record is written exactly when something changes"
        if after.leader != before.leader or set(before.replicas) - set(after.replicas):
            assert named

    def check_index(self) -> None:
        state = self.cluster.state
        kept, rebuilt = state.index, PartitionIndex(state.image, state.controller_led_topics)
        assert bool(state.controller_led_topics) == state.settings.topic("orders").leader_follows_controller
        for broker_id in (*BROKERS, NO_LEADER):
            assert kept.partitions_on(broker_id) == rebuilt.partitions_on(broker_id)
            assert kept.partitions_led_by(broker_id) == rebuilt.partitions_led_by(broker_id)
            assert kept.preferred_leader_count(broker_id) == rebuilt.preferred_leader_count(broker_id)
        assert kept.imbalanced_partitions() == rebuilt.imbalanced_partitions()
        assert list(kept.partitions_away_from_controller()) == list(rebuilt.partitions_away_from_controller())


def run(seed: int, *, follows_controller: bool = False) -> Counter[str]:
    cluster = AnyCluster(seed, follows_controller=follows_controller)
    scenario = []
    for _ in range(STEPS):
        scenario.append(f"{cluster.step()}: {cluster.partition}")
        try:
            cluster.check()
        except AssertionError:
            print(*scenario[-10:], sep="\n")
            raise
    return cluster.seen


@pytest.mark.parametrize("first_seed", range(0, 60, 10))
def test_partition_invariants_hold_in_random_walks(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        run(seed)


def test_partition_invariants_hold_on_a_topic_that_follows_the_controller() -> None:
    seen: Counter[str] = sum((run(seed, follows_controller=True) for seed in range(30)), Counter())
    assert seen["moved to the controller"] > 20
    assert seen["got all brokers while under way"] > 20


def test_random_walks_cover_all_relevant_states() -> None:
    seen: Counter[str] = sum((run(seed) for seed in range(15)), Counter())
    assert set(seen) == {
        "altered",
        "reassigned",
        "reassigned while under way",
        "cancelled",
        "led uncleanly",
        "elected from the eligible",
        "an eligible replica takes the place of the last in sync",
        "the last in sync has crashed",
        "who crashed becomes eligible",
        "nobody is left who has everything",
        "led uncleanly though nobody was in sync",
        "a reassignment ends with another leader",
    }
