"""The group checker finds each anomaly that it names, and nothing in a correct history."""

from collections.abc import Callable

import pytest

from moldau.testing.simulation.checkers.groups import check_groups
from moldau.testing.simulation.checkers.history_groups import (
    NO_GENERATION,
    NOTHING_COMMITTED,
    CommitOperation,
    DeleteOperation,
    Delivery,
    FinalGroupState,
    GroupHistory,
    HeartbeatOperation,
    JoinOperation,
    OffsetFetchOperation,
    OperationResult,
    RequestIdentity,
    SyncOperation,
)

P, Q = ("topic", 0), ("topic", 1)
END = 100


class GroupHistoryBuilder:
    """Builds a history in which each request completes before the next is invoked."""

    def __init__(self) -> None:
        self.history = GroupHistory()

    def commit(
        self,
        offset: int,
        identity: RequestIdentity,
        result: OperationResult = OperationResult.OK,
        *,
        group: str | None = None,
    ) -> CommitOperation:
        if group is not None:
            identity = identity._replace(group=group)
        commit = CommitOperation(
            invoked_at=self.history.next_event(),
            completed_at=None if result is OperationResult.INFO else self.history.next_event(),
            result=result,
            tag=f"stamp-{len(self.history.commits)}",
            identity=identity,
            partition=P,
            offset=offset,
        )
        self.history.commits.append(commit)
        return commit

    def fetch(self, commit: CommitOperation | None, group: str = "group") -> None:
        offset, tag = (NOTHING_COMMITTED, "") if commit is None else (commit.offset, commit.tag)
        invoked_at, completed_at = self.history.next_event(), self.history.next_event()
        fetch = OffsetFetchOperation(
            group=group, partition=P, invoked_at=invoked_at, completed_at=completed_at, offset=offset, tag=tag
        )
        self.history.offset_fetches.append(fetch)

    def delete(self, group: str, *, result: OperationResult = OperationResult.OK, whole_group: bool = False) -> None:
        invoked_at = self.history.next_event()
        completed_at = None if result is OperationResult.INFO else self.history.next_event()
        self.history.deletions.append(
            DeleteOperation(
                invoked_at=invoked_at,
                completed_at=completed_at,
                result=result,
                group=group,
                partition=None if whole_group else P,
            )
        )

    def join(self, member: str, instance_id: str | None = None) -> None:
        self.history.joins.append(
            JoinOperation(
                invoked_at=self.history.next_event(),
                completed_at=self.history.next_event(),
                result=OperationResult.OK,
                group="group",
                instance_id=instance_id,
                member=member,
            )
        )

    def sync(self, identity: RequestIdentity, *partitions: tuple[str, int]) -> None:
        self.history.syncs.append(
            SyncOperation(
                invoked_at=self.history.next_event(),
                completed_at=self.history.next_event(),
                result=OperationResult.OK,
                identity=identity,
                partitions=partitions,
            )
        )

    def heartbeat(self, identity: RequestIdentity) -> None:
        invoked_at, completed_at = self.history.next_event(), self.history.next_event()
        self.history.heartbeats.append(
            HeartbeatOperation(
                invoked_at=invoked_at, completed_at=completed_at, result=OperationResult.OK, identity=identity
            )
        )

    def deliver(self, *offsets: int, partition: tuple[str, int] = P) -> None:
        self.history.deliveries += [
            Delivery(self.history.next_event(), "group", partition, offset) for offset in offsets
        ]


def member(name: str, generation: int, instance_id: str | None = None) -> RequestIdentity:
    return RequestIdentity("group", generation, name, instance_id)


NO_MEMBER = RequestIdentity("alone", NO_GENERATION, "", None)


def good() -> GroupHistoryBuilder:
    """Returns a history with two members, one static, over three generations, and commits outside of the membership."""
    builder = GroupHistoryBuilder()
    builder.join("a")
    builder.join("s1", "static")
    builder.sync(member("a", 1), P)
    builder.sync(member("s1", 1, "static"), Q)
    builder.fetch(None)
    builder.deliver(*range(50))
    first = builder.commit(30, member("a", 1))
    builder.heartbeat(member("a", 1))
    builder.commit(40, member("a", 1), OperationResult.INFO)
    builder.fetch(first)
    builder.join("s2", "static")
    builder.sync(member("s2", 1, "static"), Q)
    builder.heartbeat(member("s2", 1, "static"))
    builder.sync(member("s2", 2, "static"), P, Q)
    builder.commit(10, member("a", 1), OperationResult.FAIL)
    builder.fetch(first)
    builder.deliver(*range(30, END))
    builder.deliver(*range(END), partition=Q)
    last = builder.commit(END, member("s2", 2, "static"))
    builder.fetch(last)
    builder.commit(7, NO_MEMBER)
    builder.fetch(builder.commit(5, NO_MEMBER), "alone")
    builder.delete("alone")
    builder.fetch(None, "alone")
    builder.fetch(builder.commit(2, NO_MEMBER), "alone")
    builder.history.end_offsets = {P: END, Q: END}
    builder.history.final_groups["group"] = FinalGroupState("Stable", {"s2": [P, Q], "b": []})
    return builder


def anomalies(builder: GroupHistoryBuilder) -> set[str]:
    return {violation.anomaly for violation in check_groups(builder.history)}


def test_a_good_history_is_clean() -> None:
    assert check_groups(good().history) == []


def test_a_commit_without_a_response_may_take_effect_late() -> None:
    builder = GroupHistoryBuilder()
    first = builder.commit(1, NO_MEMBER)
    lost = builder.commit(2, NO_MEMBER, OperationResult.INFO)
    builder.fetch(first, "alone")
    builder.fetch(lost, "alone")
    assert check_groups(builder.history) == []
    builder.fetch(first, "alone")
    assert anomalies(builder) == {"committed offset moved back"}


def test_a_deletion_without_a_response_may_take_effect_late() -> None:
    builder = GroupHistoryBuilder()
    builder.delete("alone", result=OperationResult.INFO, whole_group=True)
    builder.fetch(builder.commit(1, NO_MEMBER), "alone")
    builder.fetch(None, "alone")
    assert check_groups(builder.history) == []


def test_generations_restart_after_a_group_was_deleted() -> None:
    builder = GroupHistoryBuilder()
    builder.join("a")
    builder.sync(member("a", 3), P)
    builder.delete("group", whole_group=True)
    builder.join("b")
    builder.sync(member("b", 3), P)
    builder.heartbeat(member("b", 3))
    assert check_groups(builder.history) == []


def acknowledged_and_gone(builder: GroupHistoryBuilder) -> None:
    builder.fetch(None)


def older_than_acknowledged(builder: GroupHistoryBuilder) -> None:
    builder.fetch(builder.history.commits[0])


def overwritten_and_back(builder: GroupHistoryBuilder) -> None:
    """The second commit was acknowledged but never fetched."""
    builder.fetch(builder.history.commits[4], "alone")


def deleted_and_back(builder: GroupHistoryBuilder) -> None:
    builder.commit(8, NO_MEMBER)
    builder.delete("alone")
    builder.fetch(builder.history.commits[-1], "alone")


def group_deleted_and_back(builder: GroupHistoryBuilder) -> None:
    builder.delete("alone", whole_group=True)
    builder.fetch(builder.history.commits[-1], "alone")


def recommitted_and_gone(builder: GroupHistoryBuilder) -> None:
    builder.fetch(None, "alone")


def made_up(builder: GroupHistoryBuilder) -> None:
    commit = builder.commit(9, NO_MEMBER)
    builder.history.commits.remove(commit)
    builder.fetch(commit, "alone")


def changed_on_the_way(builder: GroupHistoryBuilder) -> None:
    commit = builder.commit(9, NO_MEMBER)
    builder.fetch(commit, "alone")
    commit.offset = 8


def refused_and_there(builder: GroupHistoryBuilder) -> None:
    builder.fetch(builder.commit(9, NO_MEMBER, OperationResult.FAIL), "alone")


def behind_what_was_committed(builder: GroupHistoryBuilder) -> None:
    builder.commit(60, member("s2", 2, "static"))


def two_owners(builder: GroupHistoryBuilder) -> None:
    builder.sync(member("b", 2), Q)


def commit_of_an_old_generation(builder: GroupHistoryBuilder) -> None:
    builder.commit(END, member("a", 1))


def heartbeat_of_an_old_generation(builder: GroupHistoryBuilder) -> None:
    builder.heartbeat(member("s2", 1, "static"))


def commit_of_a_fenced_member(builder: GroupHistoryBuilder) -> None:
    builder.commit(END, member("s1", 2, "static"))


def heartbeat_of_a_fenced_member(builder: GroupHistoryBuilder) -> None:
    builder.heartbeat(member("s1", 2, "static"))


def ahead_of_the_reader(builder: GroupHistoryBuilder) -> None:
    builder.commit(END + 1, member("s2", 2, "static"), OperationResult.INFO)


def a_record_left_out(builder: GroupHistoryBuilder) -> None:
    builder.history.deliveries = [each for each in builder.history.deliveries if each.offset != 60]


def a_partition_left_out(builder: GroupHistoryBuilder) -> None:
    builder.history.final_groups["group"] = FinalGroupState("Stable", {"s2": [P]})


def a_partition_with_two_owners_at_the_end(builder: GroupHistoryBuilder) -> None:
    builder.history.final_groups["group"] = FinalGroupState("Stable", {"s2": [P, Q], "b": [Q]})


def still_rebalancing(builder: GroupHistoryBuilder) -> None:
    builder.history.final_groups["group"] = FinalGroupState("PreparingRebalance", {"s2": [P, Q]})


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
        ("unstable group", a_partition_left_out),
        ("unstable group", a_partition_with_two_owners_at_the_end),
        ("unstable group", still_rebalancing),
    ],
)
def test_each_anomaly_is_caught(anomaly: str, spoil: Callable[[GroupHistoryBuilder], None]) -> None:
    builder = good()
    spoil(builder)
    assert anomaly in anomalies(builder)
