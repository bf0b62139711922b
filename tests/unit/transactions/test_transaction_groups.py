"""Transaction groups: one decision for the transactions of all members of a batch."""

import contextlib
import random

import pytest

from moldau.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionStateError,
    MoldauError,
    ProducerFencedError,
)
from moldau.transactions.records import TransactionGroupRecord, TransactionRecord
from moldau.transactions.requests import ProducerIdAndEpoch
from moldau.transactions.shard import IDS_PER_EXPIRATION_PASS
from moldau.transactions.transaction_group import ENDED_RUNS_MAX, TransactionGroupMetadata
from moldau.transactions.transaction_groups import ABORTS_MAX
from moldau.transactions.transaction_metadata import PRODUCER_EPOCH_MAX, TV1, TransactionMetadata, TransactionState
from moldau.wire.transaction_group_id import coordinator_key, group_of_member, member_transactional_id
from support.transactions import DAY_MS, TIMEOUT_MS, ShardHarness

P0, P1 = ("orders", 0), ("orders", 1)
STATES = TransactionState

Member = tuple[str, ProducerIdAndEpoch]
Written = tuple[str, int, int]
"""The transaction of a member: its name, producer id and epoch."""


@pytest.fixture
def harness() -> ShardHarness:
    return ShardHarness()


def begin(harness: ShardHarness, member: str, batch_id: int = 0, run_id: str = "r1", **more: str) -> Member:
    """Starts a member and writes to a partition."""
    producer = harness.init_member(member, batch_id, run_id, **more)
    assert producer is not None
    group_id = more.get("group_id", "q")
    harness.add(producer, P0, transactional_id=member_transactional_id(group_id, member))
    return member, producer


def state_of(harness: ShardHarness, member: str, group_id: str = "q") -> TransactionState:
    return harness.get(member_transactional_id(group_id, member)).state


def group(harness: ShardHarness, group_id: str = "q") -> TransactionGroupMetadata:
    found = harness.shard.groups.get(group_id)
    assert found is not None
    return found


# Ids


@pytest.mark.parametrize(
    ("transactional_id", "group_id", "key"),
    [
        ("orders", None, "orders"),
        ("__moldau.group/q/0/1", "q", "__moldau.group/q"),
        ("__moldau.group/q/", "q", "__moldau.group/q"),
        ("__moldau.group/q", None, "__moldau.group/q"),
        ("__moldau.group", None, "__moldau.group"),
        ("x__moldau.group/q/0", None, "x__moldau.group/q/0"),
    ],
)
def test_all_members_of_a_group_have_one_coordinator(transactional_id: str, group_id: str | None, key: str) -> None:
    assert group_of_member(transactional_id) == group_id
    assert coordinator_key(transactional_id) == key


# The commit


def test_a_commit_is_one_append_for_the_group_and_all_its_members(harness: ShardHarness) -> None:
    first, second, unlisted = (begin(harness, member) for member in ("0/0", "1/0", "1/1"))
    appends = len(harness.log)
    harness.end_group(first, second)
    assert len(harness.log) == appends + 1
    assert group(harness).last_batch_id == 0
    states = [state_of(harness, each[0]) for each in (first, second, unlisted)]
    assert states == [STATES.PREPARE_COMMIT, STATES.PREPARE_COMMIT, STATES.PREPARE_ABORT]
    markers = {each.transactional_id: each.commit for each in harness.complete()}
    assert markers == {"__moldau.group/q/0/0": True, "__moldau.group/q/1/0": True, "__moldau.group/q/1/1": False}


def test_the_epoch_increases_as_in_tv2(harness: ShardHarness) -> None:
    _, producer = member = begin(harness, "0/0")
    harness.end_group(member)
    assert harness.get("__moldau.group/q/0/0").producer_epoch == producer.producer_epoch + 1
    harness.complete()
    assert harness.init_member("0/0", 1) == (producer.producer_id, producer.producer_epoch + 2)


def test_a_commit_before_tv2_keeps_the_epoch_but_the_next_member_gets_another(harness: ShardHarness) -> None:
    harness.transaction_version = TV1
    _, producer = member = begin(harness, "0/0")
    harness.end_group(member)
    harness.complete()
    assert harness.get("__moldau.group/q/0/0").producer_epoch == producer.producer_epoch
    assert harness.init_member("0/0", 1) == (producer.producer_id, producer.producer_epoch + 1)


@pytest.mark.parametrize("reload", [False, True])
def test_a_repeated_commit_succeeds_and_changes_nothing(harness: ShardHarness, reload: bool) -> None:
    member = begin(harness, "0/0")
    harness.end_group(member)
    harness.complete()
    if reload:
        harness.reload()
    appends = len(harness.log)
    harness.end_group(member)
    harness.end_group(("9/9", ProducerIdAndEpoch(1, 1)), run_id="another driver")
    assert len(harness.log) == appends


@pytest.mark.parametrize("reload", [False, True])
def test_a_replayed_batch_is_not_written_again(harness: ShardHarness, reload: bool) -> None:
    harness.end_group(begin(harness, "0/0"))
    if reload:
        harness.reload()
    assert harness.init_member("0/0", 0, "r2") is None
    assert harness.init_member("7/0", 0, "r2") is None
    assert harness.init_member("7/0", 1, "r2") is not None


def test_a_batch_without_records_is_committed(harness: ShardHarness) -> None:
    harness.end_group(batch_id=3)
    assert group(harness).last_batch_id == 3
    assert harness.init_member(batch_id=3) is None


def test_a_batch_before_the_last_one_is_refused_because_skipping_it_would_lose_records(harness: ShardHarness) -> None:
    harness.end_group(batch_id=5)
    for request in (lambda: harness.init_member(batch_id=4), lambda: harness.end_group(batch_id=4)):
        with pytest.raises(InvalidTransactionStateError, match="batch 4 of 'q' is older than the last committed"):
            request()


def test_groups_do_not_touch_each_other(harness: ShardHarness) -> None:
    other = begin(harness, "0/0", group_id="other")
    harness.end_group(begin(harness, "0/0"))
    assert state_of(harness, "0/0", "other") is STATES.ONGOING
    harness.end_group(other, group_id="other")
    assert (group(harness).last_batch_id, group(harness, "other").last_batch_id) == (0, 0)


# Refused commits


@pytest.mark.parametrize("reload", [False, True])
def test_a_commit_is_refused_as_a_whole_if_a_member_has_timed_out(harness: ShardHarness, reload: bool) -> None:
    late = begin(harness, "0/0")
    harness.now_ms += TIMEOUT_MS // 2
    member = begin(harness, "1/0")
    harness.now_ms += TIMEOUT_MS // 2 + 1
    harness.tick()
    assert state_of(harness, "0/0") is STATES.PREPARE_ABORT
    if reload:
        harness.reload()
    before = group(harness)
    with pytest.raises(ProducerFencedError):
        harness.end_group(member, late)
    assert harness.log[-1] == [TransactionGroupRecord("q", before)], "the unchanged group, to confirm the answer"
    assert state_of(harness, "1/0") is STATES.ONGOING
    assert group(harness).last_batch_id == -1


def test_a_commit_needs_exact_open_transactions(harness: ShardHarness) -> None:
    name, producer = member = begin(harness, "0/0")
    empty = harness.init_member("1/0")
    assert empty is not None
    for wrong, error in [
        (("2/0", producer), InvalidProducerIdMappingError),
        ((name, ProducerIdAndEpoch(producer.producer_id + 9, 0)), InvalidProducerIdMappingError),
        ((name, ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + 1)), ProducerFencedError),
        ((name, ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch - 1)), ProducerFencedError),
        (("1/0", empty), InvalidTransactionStateError),
        (member, InvalidRequestError),
    ]:
        with pytest.raises(error):
            harness.end_group(*([member, wrong] if wrong[0] != name or wrong == member else [wrong]))
        assert state_of(harness, "0/0") is STATES.ONGOING
    harness.end_group(member)


def test_a_member_cannot_commit_alone_but_can_abort(harness: ShardHarness) -> None:
    _, producer = member = begin(harness, "0/0")
    with pytest.raises(InvalidRequestError, match="committed as a whole"):
        harness.end(producer, transactional_id="__moldau.group/q/0/0")
    harness.end(producer, commit=False, transactional_id="__moldau.group/q/0/0")
    with pytest.raises(ProducerFencedError):
        harness.end_group(member)


# The abort


def test_an_abort_ends_all_members_and_the_run(harness: ShardHarness) -> None:
    members = [begin(harness, "0/0"), begin(harness, "1/0")]
    harness.end_group(commit=False)
    assert {state_of(harness, each) for each, _ in members} == {STATES.PREPARE_ABORT}
    harness.complete()
    with pytest.raises(ProducerFencedError):
        harness.init_member("2/0")
    with pytest.raises(ProducerFencedError):
        harness.end_group(*members)
    before = group(harness)
    harness.end_group(commit=False)
    assert harness.log[-1] == [TransactionGroupRecord("q", before)], "the unchanged group, to confirm the answer"
    harness.end_group(begin(harness, "0/0", run_id="r2"), run_id="r2")


def test_an_abort_does_nothing_once_the_batch_is_committed(harness: ShardHarness) -> None:
    harness.end_group(begin(harness, "0/0"))
    harness.complete()
    next_member = begin(harness, "0/0", 1)
    harness.end_group(commit=False, batch_id=0)
    assert state_of(harness, "0/0") is STATES.ONGOING
    harness.end_group(next_member, batch_id=1)


def test_an_abort_of_an_ended_run_does_nothing(harness: ShardHarness) -> None:
    begin(harness, "0/0")
    member = begin(harness, "9/0", run_id="r2")
    harness.end_group(commit=False, run_id="r1")
    harness.end_group(member, run_id="r2")
    harness.end_group(commit=False, group_id="unknown")
    assert harness.shard.groups.get("unknown") is None


def test_the_number_of_aborts_in_one_append_is_limited(harness: ShardHarness) -> None:
    """Otherwise a batch with too many members could not be aborted, and would stop later runs until its timeout."""
    for number in range(2 * ABORTS_MAX + 1):
        begin(harness, f"{number}/0")
    appends = len(harness.log)
    harness.end_group(commit=False)
    member = begin(harness, "new", run_id="r2")
    harness.end_group(member, run_id="r2")
    aborts = [
        sum(isinstance(each, TransactionRecord) and each.metadata is not None for each in records)
        for records in harness.log[appends:]
    ]
    # The new member begins, adds its partition, and commits with the last abort.
    assert aborts == [ABORTS_MAX, ABORTS_MAX + 1, 1, 2]
    assert state_of(harness, "new") is STATES.PREPARE_COMMIT


# Runs


@pytest.mark.parametrize("reload", [False, True])
def test_a_new_run_aborts_what_earlier_runs_have_left_open(harness: ShardHarness, reload: bool) -> None:
    orphans = [begin(harness, "0/0"), begin(harness, "5/0")]
    if reload:
        harness.reload()
    member = begin(harness, "1/0", run_id="r2")
    assert [state_of(harness, each) for each, _ in orphans] == [STATES.PREPARE_ABORT] * 2
    assert state_of(harness, member[0]) is STATES.ONGOING


def test_a_member_of_a_new_run_waits_until_the_old_transaction_with_its_id_is_aborted(harness: ShardHarness) -> None:
    _, old = begin(harness, "0/0")
    for _ in range(2):
        with pytest.raises(ConcurrentTransactionsError):
            harness.init_member("0/0", run_id="r2")
    harness.complete()
    producer = harness.init_member("0/0", run_id="r2")
    assert producer is not None
    assert producer.producer_epoch > old.producer_epoch


@pytest.mark.parametrize("reload", [False, True])
def test_a_late_member_of_an_ended_run_is_refused(harness: ShardHarness, reload: bool) -> None:
    old = begin(harness, "0/0")
    member = begin(harness, "1/0", run_id="r2")
    if reload:
        harness.reload()
    with pytest.raises(ProducerFencedError, match="the run r1 of 'q' has ended"):
        harness.init_member("1/0")
    with pytest.raises(ProducerFencedError):
        harness.end_group(old)
    harness.end_group(member, run_id="r2")


def test_the_number_of_remembered_runs_is_limited(harness: ShardHarness) -> None:
    for number in range(100):
        harness.end_group(batch_id=number, run_id=f"r{number}")
    assert group(harness).run_id == "r99"
    assert len(group(harness).ended_run_ids) == ENDED_RUNS_MAX


@pytest.mark.parametrize("reload", [False, True])
def test_a_member_that_has_not_written_cannot_begin_after_the_decision(harness: ShardHarness, reload: bool) -> None:
    """Nobody would end its transaction before the timeout."""
    late = harness.init_member("0/1")
    assert late is not None
    harness.end_group(begin(harness, "0/0"))
    harness.complete()
    if reload:
        harness.reload()
    with pytest.raises(InvalidProducerIdMappingError):
        harness.add(late, P1, transactional_id="__moldau.group/q/0/1")
    _, producer = begin(harness, "0/1", 1)
    assert producer.producer_id != late.producer_id


def test_a_member_of_an_ended_run_that_has_not_written_cannot_begin(harness: ShardHarness) -> None:
    producer = harness.init_member("5/0")
    assert producer is not None
    member = begin(harness, "0/0", run_id="r2")
    with pytest.raises(InvalidProducerIdMappingError):
        harness.add(producer, P1, transactional_id="__moldau.group/q/5/0")
    harness.end_group(member, run_id="r2")


# Producer ids and expiration


def test_a_member_gets_a_new_producer_id_before_its_epochs_are_exhausted(harness: ShardHarness) -> None:
    idle = TransactionMetadata(
        producer_id=7,
        producer_epoch=PRODUCER_EPOCH_MAX - 4,
        timeout_ms=TIMEOUT_MS,
        state=STATES.COMPLETE_COMMIT,
        start_ms=1,
        last_update_ms=harness.now_ms,
    )
    harness.put("__moldau.group/q/0/0", idle)
    _, producer = member = begin(harness, "0/0")
    assert producer == (7, PRODUCER_EPOCH_MAX - 3)
    harness.end_group(member)
    harness.complete()
    assert harness.get("__moldau.group/q/0/0").producer_epoch == PRODUCER_EPOCH_MAX - 2
    _, producer = member = begin(harness, "0/0", 1)
    assert producer == (1001, 0)
    harness.end_group(member, batch_id=1)
    harness.complete()
    assert harness.get("__moldau.group/q/0/0").state is STATES.COMPLETE_COMMIT


def expire(harness: ShardHarness) -> None:
    while (result := harness.shard.expire_ids(harness.now)) is not None:
        harness.apply(result)


def test_the_last_batch_of_a_query_outlives_its_members(harness: ShardHarness) -> None:
    harness.end_group(begin(harness, "0/0"))
    harness.end_group(begin(harness, "0/0", group_id="once"), group_id="once", is_last=True)
    harness.init_member(group_id="never committed")
    harness.complete()
    harness.now_ms += 7 * DAY_MS - 1
    expire(harness)
    assert harness.shard.groups.get("once") is not None
    harness.now_ms += 1
    expire(harness)
    assert harness.shard.get("__moldau.group/q/0/0") is None
    harness.reload()
    assert harness.shard.groups.get("once") is None
    assert harness.shard.groups.get("never committed") is None
    assert harness.init_member(batch_id=0, run_id="r2") is None
    assert begin(harness, "0/0", 1, "r2") == ("0/0", (1004, 0))


def test_groups_expire_in_batches_of_limited_size(harness: ShardHarness) -> None:
    for number in range(IDS_PER_EXPIRATION_PASS + 1):
        harness.end_group(group_id=f"g{number}", is_last=True)
    harness.now_ms += 7 * DAY_MS
    appends = len(harness.log)
    expire(harness)
    expire(harness)
    assert [len(records) for records in harness.log[appends:]] == [IDS_PER_EXPIRATION_PASS, 1]


# Random schedules


class Driver:
    """A run of a query: its tasks write rows, then it commits what they wrote. Any step may be late or lost."""

    def __init__(self, run_id: str, batch_id: int) -> None:
        self.run_id = run_id
        self.batch_id = batch_id
        self.members: dict[str, ProducerIdAndEpoch] = {}


class Schedule:
    """Runs, zombies, timeouts, aborts and failovers in random order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = ShardHarness()
        self.drivers = [Driver("r0", 0)]
        self.decided: dict[int, list[Written]] = {}
        """What the successful commit of each batch listed."""
        self.writers: dict[Written, tuple[str, int]] = {}
        """Run and batch of each transaction."""
        self.markers: dict[Written, bool] = {}

    def step(self) -> None:
        driver = self.random.choice(self.drivers[-3:])
        match self.random.randrange(9):
            case 0:
                group = self.harness.shard.groups.get("q")
                batch_id = 0 if group is None else group.last_batch_id + self.random.choice([0, 1, 1])
                self.drivers.append(Driver(f"r{len(self.drivers)}", max(0, batch_id)))
            case 1 | 2 | 3 | 4:
                self.write(driver, f"{self.random.randrange(3)}/0")
            case 5:
                self.commit(driver)
            case 6:
                self.harness.end_group(batch_id=driver.batch_id, run_id=driver.run_id, commit=False)
            case 7:
                self.harness.now_ms += self.random.choice([1, TIMEOUT_MS // 2, TIMEOUT_MS + 1])
                self.harness.tick()
            case 8:
                self.harness.reload()

    def write(self, driver: Driver, member: str) -> None:
        producer = self.harness.init_member(member, driver.batch_id, driver.run_id)
        if producer is None:
            assert driver.batch_id in self.decided
            return
        driver.members[member] = producer
        self.writers[member, *producer] = driver.run_id, driver.batch_id
        self.harness.add(producer, P0, transactional_id=member_transactional_id("q", member))

    def commit(self, driver: Driver) -> None:
        self.harness.end_group(*driver.members.items(), batch_id=driver.batch_id, run_id=driver.run_id)
        self.decided.setdefault(driver.batch_id, [(member, *each) for member, each in driver.members.items()])
        driver.batch_id += 1
        driver.members = {}

    def complete(self) -> None:
        for markers in self.harness.complete():
            # A marker has the epoch after that of the transaction which it ends.
            member = markers.transactional_id.removeprefix("__moldau.group/q/")
            ended = member, markers.producer_id, markers.producer_epoch - 1
            assert self.markers.setdefault(ended, markers.commit) == markers.commit

    def run(self) -> None:
        for _ in range(150):
            with contextlib.suppress(MoldauError):
                self.step()
            if self.random.random() < 0.5:
                self.complete()
        self.harness.now_ms += 2 * TIMEOUT_MS
        self.harness.tick()
        self.complete()


@pytest.mark.parametrize("seed", range(300))
def test_every_batch_is_committed_by_one_run_as_a_whole(seed: int) -> None:
    schedule = Schedule(seed)
    schedule.run()
    committed = {ended for ended, commit in schedule.markers.items() if commit}
    assert committed == {each for listed in schedule.decided.values() for each in listed}
    for batch_id, listed in schedule.decided.items():
        assert {schedule.writers[each][1] for each in listed} <= {batch_id}
        assert len({schedule.writers[each][0] for each in listed}) <= 1
    last_batch_ids = [
        record.metadata.last_batch_id
        for records in schedule.harness.log
        for record in records
        if isinstance(record, TransactionGroupRecord) and record.metadata is not None
    ]
    assert last_batch_ids == sorted(last_batch_ids)


def test_the_random_schedules_reach_commits_of_several_members_and_aborts() -> None:
    schedules = [Schedule(seed) for seed in range(20)]
    for each in schedules:
        each.run()
    assert max(len(listed) for each in schedules for listed in each.decided.values()) == 3
    assert any(not commit for each in schedules for commit in each.markers.values())
    assert max(len(each.decided) for each in schedules) > 5
