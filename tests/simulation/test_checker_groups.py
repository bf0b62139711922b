"""The checker of groups catches every anomaly it names, and has nothing to say about a good history."""

from collections.abc import Callable

import pytest

from moldau.testing.simulation.checkers.groups import check_groups
from moldau.testing.simulation.checkers.history_groups import (
    NO_GENERATION,
    NOTHING_COMMITTED,
    Beat,
    Claim,
    Commit,
    Deletion,
    Delivery,
    Fate,
    GroupHistory,
    Join,
    Look,
    Settled,
    Sync,
)

P, Q = ("topic", 0), ("topic", 1)
END = 100


class Told:
    """A history told event by event, in which every request is over before the next begins."""

    def __init__(self) -> None:
        self.history = GroupHistory()

    def commit(
        self,
        offset: int,
        claim: Claim,
        fate: Fate = Fate.DONE,
        *,
        group: str | None = None,
    ) -> Commit:
        if group is not None:
            claim = claim._replace(group=group)
        made = Commit(
            begun=self.history.now(),
            ended=None if fate is Fate.UNKNOWN else self.history.now(),
            fate=fate,
            stamp=f"stamp-{len(self.history.commits)}",
            claim=claim,
            partition=P,
            offset=offset,
        )
        self.history.commits.append(made)
        return made

    def look(self, commit: Commit | None, group: str = "group") -> None:
        offset, stamp = (NOTHING_COMMITTED, "") if commit is None else (commit.offset, commit.stamp)
        begun, ended = self.history.now(), self.history.now()
        look = Look(group=group, partition=P, begun=begun, ended=ended, offset=offset, stamp=stamp)
        self.history.looks.append(look)

    def delete(self, group: str, *, fate: Fate = Fate.DONE, whole: bool = False) -> None:
        begun = self.history.now()
        ended = None if fate is Fate.UNKNOWN else self.history.now()
        self.history.deletions.append(
            Deletion(begun=begun, ended=ended, fate=fate, group=group, partition=None if whole else P)
        )

    def join(self, member: str, instance: str | None = None) -> None:
        self.history.joins.append(
            Join(
                begun=self.history.now(),
                ended=self.history.now(),
                fate=Fate.DONE,
                group="group",
                instance=instance,
                member=member,
            )
        )

    def sync(self, claim: Claim, *partitions: tuple[str, int]) -> None:
        self.history.syncs.append(
            Sync(
                begun=self.history.now(),
                ended=self.history.now(),
                fate=Fate.DONE,
                claim=claim,
                partitions=partitions,
            )
        )

    def beat(self, claim: Claim) -> None:
        begun, ended = self.history.now(), self.history.now()
        self.history.beats.append(Beat(begun=begun, ended=ended, fate=Fate.DONE, claim=claim))

    def deliver(self, *offsets: int, partition: tuple[str, int] = P) -> None:
        self.history.deliveries += [
            Delivery(self.history.now(), "group", partition, offset) for offset in offsets
        ]


def member(name: str, generation: int, instance: str | None = None) -> Claim:
    return Claim("group", generation, name, instance)


NOBODY = Claim("alone", NO_GENERATION, "", None)


def good() -> Told:
    """Two members, one of them static, over three generations; and commits of somebody outside."""
    told = Told()
    told.join("a")
    told.join("s1", "static")
    told.sync(member("a", 1), P)
    told.sync(member("s1", 1, "static"), Q)
    told.look(None)
    told.deliver(*range(50))
    first = told.commit(30, member("a", 1))
    told.beat(member("a", 1))
    told.commit(40, member("a", 1), Fate.UNKNOWN)
    told.look(first)
    told.join("s2", "static")
    told.sync(member("s2", 1, "static"), Q)
    told.beat(member("s2", 1, "static"))
    told.sync(member("s2", 2, "static"), P, Q)
    told.commit(10, member("a", 1), Fate.REFUSED)
    told.look(first)
    told.deliver(*range(30, END))
    told.deliver(*range(END), partition=Q)
    last = told.commit(END, member("s2", 2, "static"))
    told.look(last)
    told.commit(7, NOBODY)
    told.look(told.commit(5, NOBODY), "alone")
    told.delete("alone")
    told.look(None, "alone")
    told.look(told.commit(2, NOBODY), "alone")
    told.history.ends = {P: END, Q: END}
    told.history.settled["group"] = Settled("Stable", {"s2": [P, Q], "b": []})
    return told


def anomalies(told: Told) -> set[str]:
    return {violation.anomaly for violation in check_groups(told.history)}


def test_a_good_history_is_clean() -> None:
    assert check_groups(good().history) == []


def test_a_commit_whose_answer_was_lost_may_show_late_and_only_then() -> None:
    told = Told()
    first = told.commit(1, NOBODY)
    lost = told.commit(2, NOBODY, Fate.UNKNOWN)
    told.look(first, "alone")
    told.look(lost, "alone")
    assert check_groups(told.history) == []
    told.look(first, "alone")
    assert anomalies(told) == {"committed offset moved back"}


def test_a_deletion_whose_answer_was_lost_may_take_effect_late() -> None:
    told = Told()
    told.delete("alone", fate=Fate.UNKNOWN, whole=True)
    told.look(told.commit(1, NOBODY), "alone")
    told.look(None, "alone")
    assert check_groups(told.history) == []


def test_generations_begin_anew_once_a_group_was_deleted() -> None:
    told = Told()
    told.join("a")
    told.sync(member("a", 3), P)
    told.delete("group", whole=True)
    told.join("b")
    told.sync(member("b", 3), P)
    told.beat(member("b", 3))
    assert check_groups(told.history) == []


def acknowledged_and_gone(told: Told) -> None:
    told.look(None)


def older_than_acknowledged(told: Told) -> None:
    told.look(told.history.commits[0])


def overwritten_and_back(told: Told) -> None:
    """Nobody saw the second commit, but it was acknowledged."""
    told.look(told.history.commits[4], "alone")


def deleted_and_back(told: Told) -> None:
    told.commit(8, NOBODY)
    told.delete("alone")
    told.look(told.history.commits[-1], "alone")


def group_deleted_and_back(told: Told) -> None:
    told.delete("alone", whole=True)
    told.look(told.history.commits[-1], "alone")


def recommitted_and_gone(told: Told) -> None:
    told.look(None, "alone")


def made_up(told: Told) -> None:
    commit = told.commit(9, NOBODY)
    told.history.commits.remove(commit)
    told.look(commit, "alone")


def changed_on_the_way(told: Told) -> None:
    commit = told.commit(9, NOBODY)
    told.look(commit, "alone")
    commit.offset = 8


def refused_and_there(told: Told) -> None:
    told.look(told.commit(9, NOBODY, Fate.REFUSED), "alone")


def behind_what_was_committed(told: Told) -> None:
    told.commit(60, member("s2", 2, "static"))


def two_owners(told: Told) -> None:
    told.sync(member("b", 2), Q)


def commit_of_an_old_generation(told: Told) -> None:
    told.commit(END, member("a", 1))


def heartbeat_of_an_old_generation(told: Told) -> None:
    told.beat(member("s2", 1, "static"))


def commit_of_a_fenced_member(told: Told) -> None:
    told.commit(END, member("s1", 2, "static"))


def heartbeat_of_a_fenced_member(told: Told) -> None:
    told.beat(member("s1", 2, "static"))


def ahead_of_the_reader(told: Told) -> None:
    told.commit(END + 1, member("s2", 2, "static"), Fate.UNKNOWN)


def a_record_left_out(told: Told) -> None:
    told.history.deliveries = [each for each in told.history.deliveries if each.offset != 60]


def a_partition_left_out(told: Told) -> None:
    told.history.settled["group"] = Settled("Stable", {"s2": [P]})


def a_partition_with_two_owners_at_the_end(told: Told) -> None:
    told.history.settled["group"] = Settled("Stable", {"s2": [P, Q], "b": [Q]})


def still_rebalancing(told: Told) -> None:
    told.history.settled["group"] = Settled("PreparingRebalance", {"s2": [P, Q]})


@pytest.mark.parametrize(
    ("anomaly", "spoil"),
    [
        ("committed offset lost", acknowledged_and_gone),
        ("committed offset lost", recommitted_and_gone),
        ("committed offset moved back", older_than_acknowledged),
        ("committed offset moved back", overwritten_and_back),
        ("deleted offset is back", deleted_and_back),
        ("deleted offset is back", group_deleted_and_back),
        ("never committed", made_up),
        ("never committed", changed_on_the_way),
        ("refused commit shows", refused_and_there),
        ("member committed less", behind_what_was_committed),
        ("partition owned twice", two_owners),
        ("old generation accepted", commit_of_an_old_generation),
        ("old generation accepted", heartbeat_of_an_old_generation),
        ("fenced member accepted", commit_of_a_fenced_member),
        ("fenced member accepted", heartbeat_of_a_fenced_member),
        ("committed unread", ahead_of_the_reader),
        ("committed unread", a_record_left_out),
        ("unseen", a_record_left_out),
        ("not settled", a_partition_left_out),
        ("not settled", a_partition_with_two_owners_at_the_end),
        ("not settled", still_rebalancing),
    ],
)
def test_each_anomaly_is_caught(anomaly: str, spoil: Callable[[Told], None]) -> None:
    told = good()
    spoil(told)
    assert anomaly in anomalies(told)
