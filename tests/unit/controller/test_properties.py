"""Whatever brokers do and administrators ask for, a partition's rules hold and nothing committed is lost."""

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from moldau.controller.balance import balance_leaders
from moldau.controller.elections import elect_uncleanly, unclean_candidates
from moldau.controller.index import PartitionIndex, PartitionName
from moldau.controller.partition_change import Kept
from moldau.controller.requests import ElectionType
from moldau.metadata.image import NO_LEADER, PartitionImage
from moldau.metadata.records import UNCHANGED, PartitionChangeRecord
from moldau.raft.messages import LogEnd
from support.controlled import ControlledCluster

BROKERS = (1, 2, 3, 4, 5)
STEPS = 400
ORDERS = PartitionName("orders", 0)

Candidates = Mapping[PartitionName, tuple[int, ...]]


class AnyCluster:
    """One partition and its replicas' logs, of which only the length counts. A crash loses records only where they are
    not synced before they count; a disk that is replaced holds nothing, or what it held some time ago. A leader commits
    as it may: what all of the in-sync set has, while nobody else is eligible."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = ControlledCluster(BROKERS)
        self.min_in_sync = self.random.randint(1, 3)
        self.unclean = self.random.random() < 0.3
        self.write_caching = self.random.random() < 0.3
        self.cluster.create("orders", self.some(BROKERS, 4))
        self.cluster.configure("orders", "min.insync.replicas", str(self.min_in_sync))
        self.cluster.configure("orders", "unclean.leader.election.enable", str(self.unclean).lower())
        self.cluster.configure("orders", "write.caching", str(self.write_caching).lower())
        self.log = dict.fromkeys(BROKERS, 0)
        self.committed = 0
        self.lost_records: set[int] = set()
        """Who may have, since it was in sync last."""
        self.before = self.partition
        self.seen: Counter[str] = Counter()

    @property
    def partition(self) -> PartitionImage:
        return self.cluster.partition()

    def is_active(self, broker_id: int) -> bool:
        return self.cluster.state.image.brokers[broker_id].is_active

    def some(self, of: tuple[int, ...], count_max: int) -> list[int]:
        return self.random.sample(of, self.random.randint(1, min(count_max, len(of))))

    def one(self) -> int:
        """Mostly a broker that has a replica."""
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
            ]
        )
        self.cluster.last_records = ()
        does()
        return does.__name__

    # What brokers do

    def dies_or_falls_silent(self) -> None:
        broker_id = self.one()
        if not self.cluster.state.image.brokers[broker_id].fenced:
            self.cluster.fence(broker_id)

    def shuts_down(self) -> None:
        broker_id = self.one()
        if self.is_active(broker_id):
            self.cluster.shut_down(broker_id)

    def restarts_cleanly(self) -> None:
        self.registers_anew(self.one(), Kept.EVERYTHING)

    def crashes_and_restarts(self) -> None:
        broker_id, before = self.one(), self.partition
        if self.write_caching:
            self.loses_records(broker_id)
        self.registers_anew(broker_id, Kept.SYNCED)
        if before.in_sync == (broker_id,) == self.partition.in_sync:
            # Who does without syncing does without these records, if nobody else has them.
            self.seen["the last in sync has crashed"] += 1
            self.committed = min(self.committed, self.log[broker_id])
        if broker_id in before.in_sync and broker_id in self.partition.eligible:
            self.seen["who crashed becomes eligible"] += 1

    def comes_back_with_another_disk(self) -> None:
        broker_id = self.one()
        self.loses_records(broker_id)
        self.registers_anew(broker_id, Kept.NOTHING)
        self.seen["nobody is left who has everything"] += not self.partition.in_sync

    def loses_records(self, broker_id: int) -> None:
        self.log[broker_id] = self.random.choice((0, self.random.randint(0, self.log[broker_id])))
        self.lost_records.add(broker_id)

    def registers_anew(self, broker_id: int, kept: Kept) -> None:
        before = self.partition
        self.cluster.register(broker_id, kept)
        if before.in_sync == (broker_id,) != self.partition.in_sync and self.partition.in_sync:
            self.seen["an eligible replica takes the place of the last in sync"] += 1

    def is_taken_in(self) -> None:
        broker_id = self.one()
        if self.cluster.state.image.brokers[broker_id].fenced:
            self.cluster.unfence(broker_id)

    # What leaders do

    def appends_and_commits(self) -> None:
        partition = self.partition
        if partition.leader == NO_LEADER:
            return
        self.log[partition.leader] = self.committed + 1
        enough = len(partition.in_sync) >= partition.min_in_sync(self.min_in_sync)
        if enough and not partition.eligible:
            self.committed += 1
            for broker_id in partition.in_sync:
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

    # What administrators and the controller do

    def is_reassigned(self) -> None:
        was_reassigning = self.partition.is_reassigning
        replicas = None if self.random.random() < 0.3 else self.some(BROKERS, 4)
        if self.cluster.reassign(replicas).error is None:
            self.seen["cancelled" if replicas is None else "reassigned"] += 1
            self.seen["reassigned while under way"] += was_reassigning and replicas is not None

    def is_given_back_to_its_preferred_leader(self) -> None:
        self.cluster.elect(ElectionType.PREFERRED)

    def is_balanced(self) -> None:
        self.cluster.do(balance_leaders(self.cluster.state, self.cluster.settings))

    def is_led_uncleanly_where_allowed(self) -> None:
        candidates = unclean_candidates(self.cluster.state, self.cluster.settings)
        assert self.unclean or not candidates
        self.cluster.do(elect_uncleanly(self.cluster.state, self.cluster.settings, self.ends_of(candidates)))
        self.is_led_uncleanly(candidates)

    def is_led_uncleanly_because_somebody_wants_it(self) -> None:
        candidates = unclean_candidates(self.cluster.state, self.cluster.settings, [ORDERS])
        self.seen["led uncleanly though nobody was in sync"] += (
            bool(candidates) and not self.partition.in_sync
        )
        self.cluster.elect(ElectionType.UNCLEAN, ORDERS, log_ends=self.ends_of(candidates))
        self.is_led_uncleanly(candidates)

    def ends_of(self, candidates: Candidates) -> dict[PartitionName, dict[int, LogEnd]]:
        return {
            name: {broker_id: LogEnd(0, self.log[broker_id]) for broker_id in live}
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

    # What holds

    def check(self) -> None:
        partition = self.partition
        self.check_members(partition)
        self.check_who_has_everything_committed(partition)
        self.check_epochs(self.before, partition)
        self.check_index()
        self.seen["elected from the eligible"] += (
            partition.leader in self.before.eligible and self.before.leader == NO_LEADER
        )
        self.before = partition

    def check_members(self, partition: PartitionImage) -> None:
        in_sync, eligible = partition.in_sync, partition.eligible
        if not in_sync:
            assert partition.leader == NO_LEADER
            assert not eligible
            assert set(partition.last_known_eligible) & self.lost_records, (
                "only who lost records leaves nobody"
            )
        if partition.leader != NO_LEADER:
            assert partition.leader in in_sync
            assert all(map(self.is_active, in_sync))
        assert len(set(partition.replicas)) == len(partition.replicas)
        assert set(in_sync) <= set(partition.replicas)
        assert set(eligible) <= set(partition.replicas) - set(in_sync)
        assert set(partition.adding) <= set(partition.replicas)
        assert set(partition.removing) <= set(partition.replicas) - set(partition.adding)
        if partition.is_reassigning and partition.leader != NO_LEADER:
            staying = set(partition.replicas) - set(partition.removing)
            assert not staying <= set(in_sync), "then it would be done"
        may_lead = [each for each in (*in_sync, *eligible) if self.is_active(each)]
        assert (partition.leader != NO_LEADER) == bool(may_lead)

    def check_who_has_everything_committed(self, partition: PartitionImage) -> None:
        assert not set(partition.eligible) & self.lost_records
        assert not partition.eligible or len(partition.in_sync) < partition.min_in_sync(self.min_in_sync)
        for broker_id in (*partition.in_sync, *partition.eligible):
            assert self.log[broker_id] >= self.committed

    def check_epochs(self, before: PartitionImage, after: PartitionImage) -> None:
        written = [each for each in self.cluster.last_records if isinstance(each, PartitionChangeRecord)]
        named = sum(record.leader != UNCHANGED for record in written)
        assert after.leader_epoch - before.leader_epoch == named
        assert after.partition_epoch - before.partition_epoch == len(written)
        assert bool(written) == (after != before), "a record is written where something changes"
        if after.leader != before.leader or set(before.replicas) - set(after.replicas):
            assert named

    def check_index(self) -> None:
        kept, anew = self.cluster.state.index, PartitionIndex(self.cluster.state.image)
        for broker_id in (*BROKERS, NO_LEADER):
            assert kept.partitions_of(broker_id) == anew.partitions_of(broker_id)
            assert kept.led_by(broker_id) == anew.led_by(broker_id)
            assert kept.count_preferring(broker_id) == anew.count_preferring(broker_id)
        assert kept.led_elsewhere() == anew.led_elsewhere()


def run(seed: int) -> Counter[str]:
    cluster = AnyCluster(seed)
    story = []
    for _ in range(STEPS):
        story.append(f"{cluster.step()}: {cluster.partition}")
        try:
            cluster.check()
        except AssertionError:
            print(*story[-10:], sep="\n")
            raise
    return cluster.seen


@pytest.mark.parametrize("first_seed", range(0, 60, 10))
def test_the_rules_hold_whatever_happens(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        run(seed)


def test_the_walks_come_by_everything_that_matters() -> None:
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
