"""Runs the commands of a transcript on a controller's decisions, and prints the records and the resulting
partitions."""

from collections.abc import Sequence

from moldau.controller.configuration_control import alter_configs
from moldau.controller.elections import balance_partition_leaders, elect_unclean_leaders, unclean_election_candidates
from moldau.controller.partition_change_builder import RetainedData
from moldau.controller.partition_index import PartitionName
from moldau.controller.reassignment import list_partition_reassignments, plan_drain
from moldau.controller.requests import ConfigChange, ElectionType
from moldau.errors import MoldauError
from moldau.metadata.image import TOPIC_RESOURCE, ConfigResource, PartitionRegistration
from moldau.metadata.records import (
    NO_LEADER_CHANGE,
    RECOVERING,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
)
from moldau.raft.messages import EpochEndOffset
from support.partition_decisions import ControlledCluster

_AFTER = {"cleanly": RetainedData.ALL, "after a crash": RetainedData.SYNCED, "with another disk": RetainedData.NONE}


class ControllerTranscriptRunner:
    def __init__(self) -> None:
        self._cluster = ControlledCluster(())
        self._emitted: dict[PartitionName, PartitionRegistration] = {}

    async def execute(self, command: str) -> list[str]:
        verb, *words = command.split()
        self._cluster.last_records = ()
        response = getattr(self, f"_{verb.replace('-', '_')}")(*words)
        lines = [f"log     {self._format_record(record)}" for record in self._cluster.last_records]
        lines += [f"        {line}" for line in self._news()]
        return lines + [f"response  {line}" for line in response or ()]

    # Commands

    def _brokers(self, *given: str) -> None:
        """Registers and unfences brokers, each given as id or id@rack."""
        for each in given:
            broker_id, _, rack = each.partition("@")
            self._cluster.register(int(broker_id), rack=rack or None)
            self._cluster.unfence(int(broker_id))
        self._cluster.last_records = ()

    def _create(self, topic: str, *given: str) -> None:
        replicas = [_ids(each) for each in given if "=" not in each]
        configs = dict(each.split("=") for each in given if "=" in each)
        self._cluster.create(topic, *replicas, **{key.replace(".", "_"): configs[key] for key in configs})

    def _set(self, topic: str, config: str) -> list[str]:
        key, _, value = config.partition("=")
        changes = {ConfigResource(TOPIC_RESOURCE, topic): [ConfigChange(key, value)]}
        cluster = self._cluster
        [result] = cluster.do(alter_configs(cluster.state, changes, incremental=True, validate_only=False))
        return _format_error(result.error)

    def _dies(self, broker_id: str) -> None:
        self._cluster.fence(int(broker_id))

    def _shuts_down(self, broker_id: str) -> None:
        self._cluster.shut_down(int(broker_id))

    def _registers(self, broker_id: str, *how: str) -> None:
        self._cluster.register(int(broker_id), _AFTER[" ".join(how)])

    def _is_taken_in(self, broker_id: str) -> None:
        self._cluster.unfence(int(broker_id))

    def _leader_wants(self, partition: str, isr: str, *stale: str) -> list[str]:
        """Proposes an ISR; `partition-epoch=N` if the leader has another state."""
        name = _name(partition)
        epochs = dict(each.split("=") for each in stale)
        result = self._cluster.alter(
            _ids(isr),
            topic=name.topic,
            index=name.partition,
            partition_epoch=int(epochs["partition-epoch"]) if epochs else None,
        )
        return _format_error(result.error)

    def _reassign(self, partition: str, replicas: str) -> list[str]:
        name = _name(partition)
        return _format_error(self._cluster.reassign(_ids(replicas), topic=name.topic, index=name.partition).error)

    def _cancel(self, partition: str) -> list[str]:
        name = _name(partition)
        return _format_error(self._cluster.reassign(None, topic=name.topic, index=name.partition).error)

    def _reassignments(self) -> list[str]:
        found = list_partition_reassignments(self._cluster.state.image, None)
        return [
            f"{each.topic}-{each.partition} adds {_list(each.adding_replicas)} and removes "
            f"{_list(each.removing_replicas)}"
            for each in found
        ] or ["no reassignment is under way"]

    def _elect(self, how: str, partition: str) -> list[str]:
        [result] = self._cluster.elect(ElectionType[how.upper()], _name(partition))
        return _format_error(result.error)

    def _balance(self) -> None:
        self._cluster.do(balance_partition_leaders(self._cluster.state))

    def _replicas_say(self, *given: str) -> list[str]:
        """Log ends as broker=epoch:offset, for all leaderless partitions that allow an unclean election."""
        cluster = self._cluster
        ends = {}
        for each in given:
            broker_id, _, end = each.partition("=")
            epoch, _, offset = end.partition(":")
            ends[int(broker_id)] = EpochEndOffset(int(epoch), int(offset))
        asked = unclean_election_candidates(cluster.state)
        log_ends = {name: {each: ends[each] for each in live if each in ends} for name, live in asked.items()}
        cluster.do(elect_unclean_leaders(cluster.state, log_ends))
        return [f"{name.topic}-{name.partition}: asked {_list(live)}" for name, live in asked.items()] or [
            "nobody is asked"
        ]

    def _drain(self, broker_id: str) -> list[str]:
        image = self._cluster.state.image
        replicas = {
            (topic.name, partition.index): partition.replicas
            for topic in image.topics.values()
            for partition in topic.partitions
        }
        racks = {each.broker_id: each.rack for each in image.brokers.values() if each.is_active}
        return [
            f"{move.topic}-{move.partition} goes to {_list(move.replicas or ())}"
            for move in plan_drain(replicas, racks, int(broker_id))
        ]

    # Output

    def _format_record(self, record: Record) -> str:
        match record:
            case RegisterBrokerRecord():
                return f"broker {record.broker_id} registers with epoch {record.broker_epoch}"
            case BrokerRegistrationChangeRecord() if record.in_controlled_shutdown:
                return f"broker {record.broker_id} shuts down"
            case BrokerRegistrationChangeRecord():
                return f"broker {record.broker_id} is {'fenced' if record.fenced > 0 else 'unfenced'}"
            case TopicRecord():
                return f"topic {record.name} is new"
            case PartitionRecord():
                return f"partition {record.partition_id} is new"
            case ConfigRecord():
                return f"{record.resource_name} has {record.name}={record.value}"
            case PartitionChangeRecord():
                topic = self._cluster.state.image.topic_names[record.topic_id]
                return f"{topic}-{record.partition_id}: {', '.join(_changes(record))}"
        return type(record).__name__

    def _news(self) -> list[str]:
        lines = []
        for topic in self._cluster.state.image.topics.values():
            for partition in topic.partitions:
                name = PartitionName(topic.name, partition.index)
                if self._emitted.get(name) != partition:
                    self._emitted[name] = partition
                    lines.append(f"{topic.name}-{partition.index} {_state(partition)}")
        return lines


def _changes(record: PartitionChangeRecord) -> list[str]:
    changes = []
    if record.leader != NO_LEADER_CHANGE:
        changes.append(f"leader {record.leader}")
    for what, members in (
        ("replicas", record.replicas),
        ("adding", record.adding_replicas),
        ("removing", record.removing_replicas),
        ("in sync", record.isr),
        ("eligible", record.eligible_leader_replicas),
        ("last known", record.last_known_elr),
    ):
        if members is not None:
            changes.append(f"{what} {_list(members)}")
    if record.leader_recovery_state >= 0:
        changes.append("recovering" if record.leader_recovery_state == RECOVERING else "recovered")
    return changes


def _state(partition: PartitionRegistration) -> str:
    said = "has no leader" if partition.leader < 0 else f"is led by {partition.leader}"
    said += f" in epoch {partition.leader_epoch}; in sync {_list(partition.isr)}"
    if partition.elr:
        said += f"; eligible {_list(partition.elr)}"
    return said + f"; partition epoch {partition.partition_epoch}"


def _ids(given: str) -> list[int]:
    return [int(each) for each in given.split(",")]


def _list(members: Sequence[int]) -> str:
    return ",".join(map(str, members)) or "none"


def _name(given: str) -> PartitionName:
    topic, _, index = given.rpartition("-")
    return PartitionName(topic, int(index))


def _format_error(error: MoldauError | None) -> list[str]:
    return [] if error is None else [f"{type(error).__name__}: {error}"]
