"""Polling loop of `moldau cluster drain`."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from moldau.cli.cluster.drain import move_all
from moldau.cli.console import CommandError
from moldau.cli.reassignment import STALLED_POLLS_MAX
from moldau.client.admin.admin import Admin
from moldau.client.admin.types import ClusterDescription, ConfigEntry, ConfigResource, ConfigSource, OngoingReassignment
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.metadata import BrokerInfo, PartitionInfo, TopicInfo
from moldau.client.record import TopicPartition
from support.scripted_cluster import ScriptedCluster, run

LEAVING = 1
Replicas = tuple[int, ...]
Refuse = Callable[[int, int], KafkaError | None]
"""By a partition and the number of the look."""
REFUSED = KafkaError(ErrorCode.invalid_replica_assignment, "No replica is known to have all records.")


class ScriptedAdmin(Admin):
    """A cluster of five. What it is asked to move of the topic `t`, and does not refuse, has moved at the next look;
    of `stuck`, whom nobody leads, nothing ever does, nor where one that is `down` from the second look on is to have
    it. Whoever is asked for topics has heard of all that was before
    the last `lag` looks, and of what has begun since. `controller_led` is the topic's leader.follows.controller; at the
    first `unknown_looks` looks its configs are unknown."""

    def __init__(
        self,
        partitions: Sequence[Replicas],
        refuse: Refuse,
        stuck: Sequence[int] = (),
        lag: int = 0,
        down: Sequence[int] = (),
        *,
        controller_led: str = "false",
        unknown_looks: int = 0,
    ) -> None:
        super().__init__(ScriptedCluster())
        self.partitions = list(partitions)
        self.looks = 0
        self._refuse = refuse
        self._stuck = stuck
        self._lag = lag
        self._down = down
        self._controller_led = controller_led
        self._unknown_looks = unknown_looks
        self._ended: dict[int, int] = {}
        """By partition, the look at which its move ended."""
        self._ongoing: dict[TopicPartition, OngoingReassignment] = {}

    async def describe_cluster(self, *, fenced_too: bool = False) -> ClusterDescription:
        self.looks += 1
        assert self.looks <= 2 * STALLED_POLLS_MAX, "it does not end"
        down = self._down if self.looks > 1 else ()
        brokers = tuple(BrokerInfo(each, "nowhere", 1, None) for each in (1, 2, 3, 4, 5) if each not in down)
        return ClusterDescription("scripted", 1, brokers)

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, documentation: bool = False, names: Iterable[str] | None = None
    ) -> dict[ConfigResource, KafkaError | dict[str, ConfigEntry]]:
        assert names is not None
        if self.looks <= self._unknown_looks:
            return dict.fromkeys(resources, KafkaError(ErrorCode.unknown_topic_or_partition))
        value = self._controller_led
        entries = {name: ConfigEntry(name, value, ConfigSource.DYNAMIC_TOPIC, False, False) for name in names}
        return dict.fromkeys(resources, entries)

    async def list_reassignments(self, partitions: object = None) -> dict[TopicPartition, OngoingReassignment]:
        return self._ongoing

    async def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        found = [
            PartitionInfo(index, -1 if index in self._stuck else 1, 0, self._shown(index), ())
            for index in range(len(self.partitions))
        ]
        return [TopicInfo("t", None, tuple(found))]

    def _shown(self, index: int) -> Replicas:
        replicas = self.partitions[index]
        is_unheard = index in self._ended and self.looks <= self._ended[index] + self._lag
        return (*replicas, LEAVING) if is_unheard else replicas

    async def alter_reassignments(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        results = {each: self._refuse(each.partition, self.looks) for each in wanted}
        for each, target in wanted.items():
            if results[each] is None and target is not None:
                self._ongoing_target(each, tuple(target))
        return results

    def _ongoing_target(self, partition: TopicPartition, target: Replicas) -> None:
        before = self.partitions[partition.partition]
        adding = tuple(each for each in target if each not in before)
        if partition.partition in self._stuck or not set(adding).isdisjoint(self._down):
            self._ongoing[partition] = OngoingReassignment((*target, LEAVING), adding, (LEAVING,))
            target = (*target, LEAVING)
        else:
            self._ended[partition.partition] = self.looks
        self.partitions[partition.partition] = target


def drained(
    partitions: Sequence[Replicas],
    refuse: Refuse,
    stuck: Sequence[int] = (),
    lag: int = 0,
    down: Sequence[int] = (),
    *,
    controller_led: str = "false",
    unknown_looks: int = 0,
) -> ScriptedAdmin:
    made: list[ScriptedAdmin] = []

    async def story() -> None:
        admin = ScriptedAdmin(
            partitions, refuse, stuck, lag, down, controller_led=controller_led, unknown_looks=unknown_looks
        )
        made.append(admin)
        await move_all(made[0], LEAVING)

    run(story)
    return made[0]


def test_all_replicas_move() -> None:
    admin = drained([(1, 2), (2, 3), (3, 1)], lambda index, look: None)
    assert not any(LEAVING in replicas for replicas in admin.partitions)
    assert admin.looks == 2


@pytest.mark.parametrize("value", ["true", " TRUE"])
def test_replicas_of_a_topic_that_follows_the_controller_are_removed(value: str) -> None:
    admin = drained([(1, 2, 3, 4, 5), (2, 1, 3)], lambda index, look: None, controller_led=value)
    assert admin.partitions == [(2, 3, 4, 5), (2, 3)]


def test_a_topic_with_unknown_configs_is_moved_when_they_are_known() -> None:
    admin = drained([(1, 2, 3, 4, 5)], lambda index, look: None, controller_led="true", unknown_looks=2)
    assert (admin.partitions, admin.looks) == ([(2, 3, 4, 5)], 4)


@pytest.mark.parametrize("lag", [1, 3])
def test_a_lagging_node_does_not_restart_a_completed_move(lag: int) -> None:
    admin = drained([(1, 2), (1, 2, 3)], lambda index, look: None, lag=lag)
    assert [len(replicas) for replicas in admin.partitions] == [2, 3]
    assert not any(LEAVING in replicas for replicas in admin.partitions)
    assert admin.looks == 2 + lag


def test_it_fails_if_all_remaining_moves_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError, match=r"2 partitions cannot be moved off node 1.*elect-leaders --unclean"):
        drained([(1, 2), (1, 2), (1, 3)], lambda index, look: None if index == 1 else REFUSED)
    told = capsys.readouterr().err
    assert told.count("t-0 cannot be moved yet: INVALID_REPLICA_ASSIGNMENT") == 1
    assert told.count("cannot be moved yet") == 2


def test_it_fails_if_a_partition_has_no_leader(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError, match="1 partition cannot be moved off node 1"):
        drained([(1, 2), (1, 3)], lambda index, look: None, stuck=[1])
    assert capsys.readouterr().err.count("t-1 cannot be moved yet: it has no leader") == 1


def test_it_fails_if_the_new_replica_is_down(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError, match="1 partition cannot be moved off node 1"):
        drained([(1, 2, 3, 4)], lambda index, look: None, down=[5])
    assert capsys.readouterr().err.count("t-0 cannot be moved yet: its new replica on node 5 is down") == 1


def test_a_follower_that_is_down_does_not_block_moves() -> None:
    admin = drained([(1, 2, 3)], lambda index, look: None, down=[3])
    assert admin.looks == 2


def test_a_rejected_move_is_retried(capsys: pytest.CaptureFixture[str]) -> None:
    admin = drained([(1, 2), (1, 3)], lambda index, look: REFUSED if look < STALLED_POLLS_MAX else None)
    assert not any(LEAVING in replicas for replicas in admin.partitions)
    assert capsys.readouterr().err.count("cannot be moved yet") == 2
