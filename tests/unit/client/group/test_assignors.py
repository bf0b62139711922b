"""Properties of every assignor in any group, and the specific behaviour of each."""

import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.client.group.assignors import (
    NO_ASSIGNMENT,
    ConsumerPartitionAssignor,
    PreviousAssignment,
    get_assignor,
    perform_assignment,
)
from moldau.client.group.sticky_assignment import Assignments, SubscribedMember
from moldau.wire.consumer_protocol import Partition, Subscription

NAMES = ["range", "roundrobin", "sticky", "cooperative-sticky"]
STICKY = ["sticky", "cooperative-sticky"]
TOPICS = ["a", "b", "c", "d"]

counts = st.fixed_dictionaries({topic: st.integers(0, 7) for topic in TOPICS})
wants = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(7)]),
    st.lists(st.sampled_from([*TOPICS, "missing"]), min_size=1, unique=True),
    min_size=1,
)
same_wants = st.tuples(
    st.lists(st.sampled_from([f"m{number}" for number in range(7)]), min_size=1, unique=True),
    st.lists(st.sampled_from(TOPICS), min_size=1, unique=True),
).map(lambda drawn: dict.fromkeys(drawn[0], drawn[1]))
Wants = dict[str, list[str]]


def members(name: str, wanted: Wants, had: dict[str, PreviousAssignment] | None = None) -> list[SubscribedMember]:
    """Members as they would come to the leader: eager ones own nothing any more, and say what they had."""
    assignor = get_assignor(name)
    found = []
    for who, topics in wanted.items():
        before = (had or {}).get(who, NO_ASSIGNMENT)
        owned = tuple(each for each in before.partitions if each[0] in topics) if assignor.is_cooperative else ()
        data = assignor.user_data(before)
        found.append(SubscribedMember(who, Subscription(tuple(topics), data, owned, before.generation_id)))
    return found


def settled(
    name: str, partition_counts: dict[str, int], wanted: Wants, had: dict[str, PreviousAssignment]
) -> Assignments:
    """The assignment after as many rounds as it takes: a cooperative one gives up first and hands over then."""
    assignor = get_assignor(name)
    generation = max((each.generation_id for each in had.values()), default=0)
    while True:
        assigned = assignor.assign(partition_counts, members(name, wanted, had))
        generation += 1
        gave_up = assignor.is_cooperative and any(
            set(had[who].partitions) - set(some) for who, some in assigned.items() if who in had
        )
        had = {who: PreviousAssignment(tuple(some), generation) for who, some in assigned.items()}
        if not gave_up:
            return assigned


def previous_assignment(assigned: Assignments, generation: int = 1) -> dict[str, PreviousAssignment]:
    return {who: PreviousAssignment(tuple(some), generation) for who, some in assigned.items()}


def everything(partition_counts: dict[str, int], wanted: Wants) -> list[Partition]:
    topics = {topic for some in wanted.values() for topic in some}
    return [
        (topic, index) for topic in sorted(topics & set(partition_counts)) for index in range(partition_counts[topic])
    ]


@pytest.mark.parametrize("name", NAMES)
@given(partition_counts=counts, before=wants, wanted=wants)
@settings(max_examples=60)
def test_every_partition_goes_to_exactly_one_subscriber(
    name: str, partition_counts: dict[str, int], before: Wants, wanted: Wants
) -> None:
    had = previous_assignment(settled(name, partition_counts, before, {}))
    assigned = settled(name, partition_counts, wanted, had)
    assert sorted(assigned) == sorted(wanted)
    assert sorted(each for some in assigned.values() for each in some) == everything(partition_counts, wanted)
    assert all(topic in wanted[who] for who, some in assigned.items() for topic, _ in some)


@pytest.mark.parametrize("name", NAMES)
@given(partition_counts=counts, before=wants, wanted=wants, chance=st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_the_order_of_the_members_does_not_matter(
    name: str, partition_counts: dict[str, int], before: Wants, wanted: Wants, chance: random.Random
) -> None:
    had = previous_assignment(settled(name, partition_counts, before, {}))
    some = members(name, wanted, had)
    shuffled = list(some)
    chance.shuffle(shuffled)
    shuffled_counts = dict(chance.sample(sorted(partition_counts.items()), len(partition_counts)))
    assign = get_assignor(name).assign
    assert assign(partition_counts, some) == assign(shuffled_counts, shuffled)


@pytest.mark.parametrize("name", ["roundrobin", *STICKY])
@given(partition_counts=counts, before=same_wants, wanted=same_wants)
@settings(max_examples=60)
def test_equal_subscriptions_share_evenly(
    name: str, partition_counts: dict[str, int], before: Wants, wanted: Wants
) -> None:
    had = previous_assignment(settled(name, partition_counts, before, {}))
    sizes = [len(some) for some in settled(name, partition_counts, wanted, had).values()]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", STICKY)
@given(partition_counts=counts, wanted=same_wants, data=st.data())
@settings(max_examples=60)
def test_a_leaving_member_moves_only_its_own_partitions(
    name: str, partition_counts: dict[str, int], wanted: Wants, data: st.DataObject
) -> None:
    before = settled(name, partition_counts, wanted, {})
    gone = data.draw(st.sampled_from(sorted(wanted)))
    left = {who: topics for who, topics in wanted.items() if who != gone}
    if left:
        after = settled(name, partition_counts, left, previous_assignment(before))
        assert all(set(before[who]) <= set(after[who]) for who in left)


@pytest.mark.parametrize("name", STICKY)
@given(partition_counts=counts, wanted=same_wants)
@settings(max_examples=60)
def test_a_new_member_takes_only_its_share(name: str, partition_counts: dict[str, int], wanted: Wants) -> None:
    before = settled(name, partition_counts, wanted, {})
    more = {**wanted, "new": next(iter(wanted.values()))}
    after = settled(name, partition_counts, more, previous_assignment(before))
    moved = [each for who in wanted for each in before[who] if each not in after[who]]
    assert sorted(moved) == sorted(after["new"])


@pytest.mark.parametrize("name", STICKY)
@given(partition_counts=counts, wanted=wants)
@settings(max_examples=60)
def test_an_unchanged_group_moves_no_partition(name: str, partition_counts: dict[str, int], wanted: Wants) -> None:
    before = settled(name, partition_counts, wanted, {})
    assert settled(name, partition_counts, wanted, previous_assignment(before)) == before


@given(partition_counts=counts, before=wants, wanted=wants)
@settings(max_examples=60)
def test_no_partition_is_reassigned_before_it_is_revoked(
    partition_counts: dict[str, int], before: Wants, wanted: Wants
) -> None:
    name = "cooperative-sticky"
    had = previous_assignment(settled(name, partition_counts, before, {}))
    some = members(name, wanted, had)
    owner = {each: who.member_id for who in some for each in who.subscription.owned_partitions}
    for who, assigned in get_assignor(name).assign(partition_counts, some).items():
        assert all(owner.get(each, who) == who for each in assigned)


@given(partition_counts=counts, before=wants, wanted=wants)
@settings(max_examples=60)
def test_no_chain_of_moves_would_be_more_even(partition_counts: dict[str, int], before: Wants, wanted: Wants) -> None:
    """Whom a member's partitions could reach, directly or through others, has at most one fewer than it."""
    had = previous_assignment(settled("sticky", partition_counts, before, {}))
    assigned = settled("sticky", partition_counts, wanted, had)
    for giver in assigned:
        reached, waiting = {giver}, [giver]
        while waiting:
            topics = {topic for topic, _ in assigned[waiting.pop()]}
            fresh = [who for who in wanted if who not in reached and topics & set(wanted[who])]
            reached |= set(fresh)
            waiting += fresh
        assert all(len(assigned[who]) >= len(assigned[giver]) - 1 for who in reached)


def test_range_gives_ranges_and_the_first_members_one_more() -> None:
    wanted = {"m1": ["a", "b"], "m2": ["a", "b"], "m3": ["a"]}
    assert get_assignor("range").assign({"a": 7, "b": 3}, members("range", wanted)) == {
        "m1": [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)],
        "m2": [("a", 3), ("a", 4), ("b", 2)],
        "m3": [("a", 5), ("a", 6)],
    }


def test_roundrobin_deals_over_topics() -> None:
    wanted = {"m1": ["a", "b"], "m2": ["a", "b"]}
    assert get_assignor("roundrobin").assign({"a": 3, "b": 3}, members("roundrobin", wanted)) == {
        "m1": [("a", 0), ("a", 2), ("b", 1)],
        "m2": [("a", 1), ("b", 0), ("b", 2)],
    }


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_static_members_keep_their_place_when_their_ids_change(name: str) -> None:
    def group(first: str, second: str) -> list[SubscribedMember]:
        wanted = Subscription(("a",))
        return [
            SubscribedMember(first, wanted, "x"),
            SubscribedMember(second, wanted, "y"),
            SubscribedMember("m", wanted),
        ]

    assign = get_assignor(name).assign
    before, after = assign({"a": 6}, group("1", "2")), assign({"a": 6}, group("9", "3"))
    assert (before["1"], before["2"], before["m"]) == (after["9"], after["3"], after["m"])


def test_the_newest_generation_is_believed() -> None:
    had = {"m1": PreviousAssignment((("a", 0), ("a", 1)), 5), "m2": PreviousAssignment((("a", 0), ("a", 1)), 4)}
    wanted = {"m1": ["a"], "m2": ["a"]}
    assigned = get_assignor("sticky").assign({"a": 2}, members("sticky", wanted, had))
    assert assigned["m1"] == [("a", 0)]
    kept = get_assignor("cooperative-sticky").assign({"a": 2}, members("cooperative-sticky", wanted, had))
    assert kept == {"m1": [("a", 0)], "m2": []}


def test_a_partition_claimed_twice_in_one_generation_is_revoked_first() -> None:
    had = {"m1": PreviousAssignment((("a", 0), ("a", 1)), 5), "m2": PreviousAssignment((("a", 1),), 5)}
    wanted = {"m1": ["a"], "m2": ["a"]}
    some = members("cooperative-sticky", wanted, had)
    assert get_assignor("cooperative-sticky").assign({"a": 2}, some) == {"m1": [("a", 0)], "m2": []}


def test_sticky_members_of_before_generations_are_believed_too() -> None:
    remembered_by_old = bytes.fromhex("00000001 0001 61 00000001 00000001")
    some = [
        SubscribedMember("m1", Subscription(("a",))),
        SubscribedMember("m2", Subscription(("a",), remembered_by_old)),
        SubscribedMember("m3", Subscription(("a",), b"\x00\x00")),
    ]
    assert get_assignor("sticky").assign({"a": 3}, some)["m2"] == [("a", 1)]


def test_old_cooperative_members_send_their_generation_in_the_user_data() -> None:
    old = Subscription(("a",), (4).to_bytes(4, "big"), (("a", 0),))
    new = Subscription(("a",), None, (("a", 0),), 3)
    some = [SubscribedMember("m1", new), SubscribedMember("m2", old)]
    assert get_assignor("cooperative-sticky").assign({"a": 1}, some) == {"m1": [], "m2": [("a", 0)]}


def test_an_unknown_assignor_is_rejected() -> None:
    with pytest.raises(ValueError, match="unknown assignor 'best'"):
        get_assignor("best")


# Assignors of users


class FixedAssignor(ConsumerPartitionAssignor):
    name = "fixed"

    def __init__(self, assignments: Assignments, is_cooperative: bool) -> None:
        self._assignments = assignments
        self.is_cooperative = is_cooperative  # type: ignore[misc]

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> Assignments:
        return self._assignments


def perform(assignments: Assignments, is_cooperative: bool, owned: Mapping[str, Sequence[Partition]]) -> None:
    members = [
        SubscribedMember(member_id, Subscription(("a",), None, tuple(partitions), 3))
        for member_id, partitions in owned.items()
    ]
    perform_assignment(FixedAssignor(assignments, is_cooperative), {"a": 2}, members, "x")


def test_a_cooperative_assignor_must_not_move_a_partition_that_is_still_owned() -> None:
    owned = {"x": [("a", 0), ("a", 1)], "y": []}
    moved: Assignments = {"x": [("a", 0)], "y": [("a", 1)]}
    with pytest.raises(ValueError, match="a-1 moves from x to y"):
        perform(moved, True, owned)
    perform({"x": [("a", 0)], "y": []}, True, owned)
    perform(moved, True, {"x": [("a", 0)], "y": []})
    perform(moved, False, owned)
    # Both claim a partition after one of them has missed a rebalance.
    perform(moved, True, {"x": [("a", 0), ("a", 1)], "y": [("a", 1)]})


def test_a_partition_must_not_be_assigned_twice() -> None:
    for assignments in ({"x": [("a", 0), ("a", 0)], "y": []}, {"x": [("a", 0)], "y": [("a", 0)]}):
        with pytest.raises(ValueError, match="a-0 is assigned twice"):
            perform(assignments, False, {"x": [], "y": []})
