"""Static members: a consumer with an instance id may restart within its session timeout without a rebalance."""

import pytest
from group_member import Committed, Refused, eventually, partitions_of, share
from group_observer import FENCED_INSTANCE_ID, Observer
from group_under_test import Group, receive, send

from support.topics import Topics


@pytest.mark.parametrize("restarted", [0, 1], ids=["leader", "follower"])
def test_a_static_member_restarts_without_a_rebalance(
    bootstrap: str, topics: Topics, group: Group, observer: Observer, restarted: int
) -> None:
    topic = topics.create(4)
    everything = partitions_of(topic, 4)
    members = [group.member(topic, instance_id="instance-0")]
    share(members, everything)
    members.append(group.member(topic, instance_id="instance-1"))
    share(members, everything)
    group.settle(observer)
    generation = observer.generation(group.id)
    stays, had = members[1 - restarted], members[restarted].assignment
    told = list(stays.events)

    members[restarted].close()
    seen = observer.describe(group.id)
    assert {each.instance_id for each in seen.members} == {"instance-0", "instance-1"}, "it left by closing"
    members[restarted] = group.member(topic, instance_id=f"instance-{restarted}")
    share(members, everything)
    assert members[restarted].assignment == had
    receive(members, send(bootstrap, everything, 3))
    assert observer.generation(group.id) == generation
    assert stays.events == told, "the other member was told of a rebalance"
    after = observer.describe(group.id)
    was, now = ({each.instance_id: each.member_id for each in state.members} for state in (seen, after))
    assert [was[name] == now[name] for name in ("instance-0", "instance-1")] == [
        number != restarted for number in range(2)
    ]


def test_a_duplicate_instance_id_fences_the_member_that_had_it(
    bootstrap: str, topics: Topics, group: Group, observer: Observer
) -> None:
    if "fencing" in group.library.lacks:
        pytest.skip(group.library.lacks["fencing"])
    topic = topics.create(2)
    everything = partitions_of(topic, 2)
    old = group.member(topic, instance_id="the-one")
    share([old], everything)
    group.settle(observer)
    generation = observer.generation(group.id)
    new = group.member(topic, instance_id="the-one")
    share([new], everything)
    with pytest.raises(Refused) as raised:
        old.commit({(topic, 0): Committed(0)})
    # Whichever was first, a heartbeat or the commit, has the reason; a library may have no other for what follows.
    eventually(
        lambda: FENCED_INSTANCE_ID in (raised.value.code, *old.codes()),
        lambda: f"not fenced: {raised.value}, {old.errors}",
    )
    receive([new], send(bootstrap, everything, 3))
    old.close()
    assert set(old.codes()) <= {FENCED_INSTANCE_ID}
    old.errors.clear()
    seen = observer.describe(group.id)
    assert [each.instance_id for each in seen.members] == ["the-one"]
    assert seen.members[0].assignment == everything
    assert observer.generation(group.id) == generation


def test_a_static_member_that_stays_away_is_removed_when_its_session_ends(
    topics: Topics, group: Group, observer: Observer, short_session_ms: int
) -> None:
    topic = topics.create(4)
    everything = partitions_of(topic, 4)
    stays = group.member(topic, instance_id="stays")
    goes = group.member(
        topic, instance_id="goes", session_timeout_ms=short_session_ms, max_poll_interval_ms=10 * short_session_ms
    )
    share([stays, goes], everything)
    goes.close()
    share([stays], everything)
    assert [each.instance_id for each in observer.describe(group.id).members] == ["stays"]
