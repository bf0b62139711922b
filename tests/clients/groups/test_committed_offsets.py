"""Committed offsets: every client library resumes from them, also after a restart of the broker."""

import pytest
from group_member import COMMIT_FAILED, Admin, Committed, Library, Refused, partitions_of, share
from group_observer import OFFSET_METADATA_TOO_LARGE, UNKNOWN_MEMBER_ID
from group_under_test import Group, receive, send

from support.broker_process import BrokerProcess
from support.topics import Topics


def test_the_next_consumer_begins_at_the_committed_offset(bootstrap: str, topics: Topics, group: Group) -> None:
    topic = topics.create(1)
    values = send(bootstrap, [(topic, 0)], 10)
    first = group.member(topic)
    receive([first], values)
    first.commit({(topic, 0): Committed(4)})
    assert first.committed((topic, 0)) == 4
    first.close()
    second = group.member(topic)
    receive([second], values[4:])
    assert [record.offset for record in second.received] == [4, 5, 6, 7, 8, 9]


def test_what_was_never_committed_is_not_there(topics: Topics, group: Group, admin: Admin) -> None:
    topic = topics.create(2)
    member = group.member(partitions=((topic, 0), (topic, 1)))
    assert member.committed((topic, 0)) is None
    member.commit({(topic, 1): Committed(0)})
    assert member.committed((topic, 0)) is None
    assert member.committed((topic, 1)) == 0
    assert admin.offsets(group.id) == {(topic, 1): Committed(0)}


def test_metadata_is_kept_with_a_committed_offset(topics: Topics, group: Group, admin: Admin) -> None:
    topic = topics.create(2)
    member = group.member(topic)
    share([member], partitions_of(topic, 2))
    committed = {(topic, 0): Committed(3, "first batch, řeka 水"), (topic, 1): Committed(8, "")}
    member.commit(committed)
    assert admin.offsets(group.id) == committed
    committed[topic, 0] = Committed(5, "x" * 4000)
    member.commit({(topic, 0): committed[topic, 0]})
    assert admin.offsets(group.id) == committed


def test_offset_metadata_over_the_limit_is_rejected(topics: Topics, group: Group, admin: Admin) -> None:
    topic = topics.create(1)
    member = group.member(topic)
    share([member], [(topic, 0)])
    member.commit({(topic, 0): Committed(3, "short")})
    with pytest.raises(Refused) as raised:
        member.commit({(topic, 0): Committed(4, "x" * 5000)})
    assert raised.value.code == OFFSET_METADATA_TOO_LARGE
    assert admin.offsets(group.id) == {(topic, 0): Committed(3, "short")}


def test_a_consumer_that_joins_no_group_commits_in_its_name(
    bootstrap: str, topics: Topics, group: Group, admin: Admin
) -> None:
    topic = topics.create(2)
    values = send(bootstrap, [(topic, 0)], 5)
    alone = group.member(partitions=((topic, 0),))
    receive([alone], values)
    alone.commit({(topic, 0): Committed(3)})
    alone.close()
    assert group.id in admin.groups()
    assert admin.describe(group.id).state == "Empty"
    again = group.member(partitions=((topic, 0),))
    receive([again], values[3:])
    assert [record.offset for record in again.received] == [3, 4]


def test_a_stranger_cannot_commit_for_a_group_that_has_members(topics: Topics, group: Group, admin: Admin) -> None:
    topic = topics.create(1)
    member = group.member(topic)
    share([member], [(topic, 0)])
    member.commit({(topic, 0): Committed(1)})
    stranger = group.member(partitions=((topic, 0),))
    with pytest.raises(Refused) as raised:
        stranger.commit({(topic, 0): Committed(7)})
    assert raised.value.code in (UNKNOWN_MEMBER_ID, COMMIT_FAILED)
    assert admin.offsets(group.id) == {(topic, 0): Committed(1)}


def test_closing_commits_where_the_consumer_commits_by_itself(
    bootstrap: str, topics: Topics, group: Group, admin: Admin
) -> None:
    topic = topics.create(2)
    everything = partitions_of(topic, 2)
    values = send(bootstrap, everything, 5)
    first = group.member(topic, auto_commit=True)
    receive([first], values)
    first.close()
    assert admin.offsets(group.id) == dict.fromkeys(everything, Committed(5))
    more = send(bootstrap, everything, 2, "more")
    second = group.member(topic, auto_commit=True)
    receive([second], more)
    assert sorted(second.values()) == sorted(more)


def test_a_rebalance_commits_where_the_consumer_commits_by_itself(bootstrap: str, topics: Topics, group: Group) -> None:
    topic = topics.create(2)
    everything = partitions_of(topic, 2)
    values = send(bootstrap, everything, 5)
    first = group.member(topic, auto_commit=True)
    receive([first], values)
    second = group.member(topic, auto_commit=True)
    share([first, second], everything)
    more = send(bootstrap, everything, 2, "more")
    receive([first, second], more)
    assert sorted(first.values() + second.values()) == sorted(values + more)


# Over a restart of the broker


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_members_go_on_when_their_broker_is_restarted(restartable: BrokerProcess, library: Library, how: str) -> None:
    bootstrap = restartable.bootstrap
    topic = Topics(bootstrap).create(4)
    everything = partitions_of(topic, 4)
    with Group(bootstrap, library) as group:
        members = [group.member(topic) for _ in range(2)]
        share(members, everything)
        receive(members, send(bootstrap, everything, 5, "before"))
        for member in members:
            member.commit()
        if how == "killed":
            restartable.kill()
        else:
            restartable.stop()
        restartable.start()
        receive(members, send(bootstrap, everything, 5, "after"))
        share(members, everything)
        for member in members:
            member.commit()
        assert [members[0].committed(each) for each in sorted(everything)] == [10, 10, 10, 10]


def test_a_new_consumer_resumes_at_what_was_committed_before_a_restart(
    restartable: BrokerProcess, library: Library
) -> None:
    bootstrap = restartable.bootstrap
    topic = Topics(bootstrap).create()
    with Group(bootstrap, library) as group:
        values = send(bootstrap, [(topic, 0)], 10)
        first = group.member(topic)
        receive([first], values)
        first.commit({(topic, 0): Committed(6, "kept")})
        first.close()
        restartable.kill()
        restartable.start()
        second = group.member(topic)
        receive([second], values[6:])
        assert [record.offset for record in second.received] == [6, 7, 8, 9]
        admin = library.admin(bootstrap)
        assert admin.offsets(group.id) == {(topic, 0): Committed(6, "kept")}
        admin.close()
