"""Groups through the admin client of every library: listed, described, deleted, and their offsets set."""

import pytest
from group_member import Admin, Committed, Library, Refused, partitions_of, share
from group_observer import GROUP_ID_NOT_FOUND, GROUP_SUBSCRIBED_TO_TOPIC, NON_EMPTY_GROUP, UNKNOWN_MEMBER_ID
from group_under_test import Group, receive, send

from support.topics import Topics, unique


def needs(library: Library, ability: str) -> None:
    if ability in library.lacks:
        pytest.skip(library.lacks[ability])


def test_groups_are_listed(topics: Topics, group: Group, bootstrap: str, admin: Admin) -> None:
    topic = topics.create(1)
    live = group.member(topic)
    share([live], [(topic, 0)])
    with Group(bootstrap, group.library) as other:
        other.member(partitions=((topic, 0),)).commit({(topic, 0): Committed(0)})
    listed = admin.groups()
    assert {group.id, other.id} <= set(listed)
    assert unique("group") not in listed
    if "group states" not in group.library.lacks:
        assert (listed[group.id], listed[other.id]) == ("Stable", "Empty")


def test_a_group_is_described_with_its_members(topics: Topics, group: Group, admin: Admin) -> None:
    topic = topics.create(4)
    members = [group.member(topic, client_id=f"client-{number}") for number in range(2)]
    share(members, partitions_of(topic, 4))
    described = admin.describe(group.id)
    assert (described.state, described.assignor) == ("Stable", "range")
    assert {each.client_id: each.assignment for each in described.members} == {
        member.options.client_id: member.assignment for member in members
    }
    for member in members:
        member.close()
    described = admin.describe(group.id)
    assert (described.state, described.members) == ("Empty", [])


def test_a_static_member_is_described_with_its_instance_id(topics: Topics, group: Group, admin: Admin) -> None:
    needs(group.library, "describe instances")
    topic = topics.create(1)
    share([group.member(topic, instance_id="number one")], [(topic, 0)])
    assert [each.instance_id for each in admin.describe(group.id).members] == ["number one"]


def test_a_group_that_is_not_there_is_dead_or_not_found(admin: Admin) -> None:
    """Which of the two it is depends on the version of the request that the library sends."""
    try:
        answer: str | int = admin.describe(unique("group")).state
    except Refused as error:
        answer = error.code
    assert answer in ("Dead", GROUP_ID_NOT_FOUND)


def test_an_empty_group_is_deleted_with_its_offsets(bootstrap: str, topics: Topics, group: Group, admin: Admin) -> None:
    needs(group.library, "delete groups")
    topic = topics.create(1)
    values = send(bootstrap, [(topic, 0)], 3)
    member = group.member(topic)
    receive([member], values)
    member.commit()
    member.close()
    assert admin.offsets(group.id) == {(topic, 0): Committed(3)}
    admin.delete(group.id)
    assert group.id not in admin.groups()
    assert admin.offsets(group.id) == {}
    receive([group.member(topic)], values)


def test_a_group_with_members_is_not_deleted(topics: Topics, group: Group, admin: Admin) -> None:
    needs(group.library, "delete groups")
    topic = topics.create(1)
    member = group.member(topic)
    share([member], [(topic, 0)])
    member.commit({(topic, 0): Committed(1)})
    with pytest.raises(Refused) as raised:
        admin.delete(group.id)
    assert raised.value.code == NON_EMPTY_GROUP
    assert admin.describe(group.id).state == "Stable"
    assert admin.offsets(group.id) == {(topic, 0): Committed(1)}


def test_a_group_that_is_not_there_is_not_deleted(library: Library, admin: Admin) -> None:
    needs(library, "delete groups")
    with pytest.raises(Refused) as raised:
        admin.delete(unique("group"))
    assert raised.value.code == GROUP_ID_NOT_FOUND


def test_the_offsets_of_an_empty_group_are_set(bootstrap: str, topics: Topics, group: Group, admin: Admin) -> None:
    needs(group.library, "set offsets")
    topic = topics.create(2)
    everything = partitions_of(topic, 2)
    values = send(bootstrap, everything, 10)
    first = group.member(topic)
    receive([first], values)
    first.commit()
    first.close()
    admin.set_offsets(group.id, {(topic, 0): 7})
    assert admin.offsets(group.id) == {(topic, 0): Committed(7), (topic, 1): Committed(10)}
    second = group.member(topic)
    receive([second], values[7:10])
    assert [(record.partition, record.offset) for record in second.received] == [(0, 7), (0, 8), (0, 9)]


def test_the_offsets_of_a_group_with_members_are_not_set(topics: Topics, group: Group, admin: Admin) -> None:
    needs(group.library, "set offsets")
    topic = topics.create(1)
    member = group.member(topic)
    share([member], [(topic, 0)])
    member.commit({(topic, 0): Committed(0)})
    with pytest.raises(Refused) as raised:
        admin.set_offsets(group.id, {(topic, 0): 0})
    assert raised.value.code == UNKNOWN_MEMBER_ID


def test_single_offsets_are_deleted_unless_a_member_subscribes_to_the_topic(
    topics: Topics, group: Group, admin: Admin
) -> None:
    needs(group.library, "delete offsets")
    topic = topics.create(2)
    member = group.member(topic)
    share([member], partitions_of(topic, 2))
    member.commit({(topic, 0): Committed(1), (topic, 1): Committed(2)})
    with pytest.raises(Refused) as raised:
        admin.delete_offsets(group.id, [(topic, 0)])
    assert raised.value.code == GROUP_SUBSCRIBED_TO_TOPIC
    member.close()
    admin.delete_offsets(group.id, [(topic, 0)])
    assert admin.offsets(group.id) == {(topic, 1): Committed(2)}
