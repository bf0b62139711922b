"""kafka-python in groups."""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import kafka.errors
from group_member import (
    COMMIT_FAILED,
    HEARTBEAT_MS,
    POLL_MS,
    Admin,
    Committed,
    Description,
    GroupMember,
    Library,
    Member,
    Options,
    Partition,
    Record,
    Refused,
    eventually,
)
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import BrokerResponseError, CommitFailedError, KafkaConnectionError
from kafka.structs import MemberState, OffsetAndMetadata

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}

JOIN_POLL_MS = 300
"""kafka-python joins again when its join outlasted a poll: one more rebalance, which short polls would bring about."""


def _refused(error: BrokerResponseError) -> Refused:
    return Refused(error.errno, error)


def _plain(partitions: Iterable[Any]) -> list[Partition]:
    return [(each.topic, each.partition) for each in partitions]


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: "KafkaPythonMember") -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._member._tell("assigned", _plain(assigned))

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._member._tell("revoked", _plain(revoked))

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._member._tell("lost", _plain(lost))


class KafkaPythonMember(Member):
    def _open(self) -> None:
        options = self.options
        self._consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=options.group,
            client_id=options.client_id,
            group_instance_id=options.instance_id,
            auto_offset_reset="earliest",
            enable_auto_commit=options.auto_commit,
            partition_assignment_strategy=[ASSIGNORS[options.assignor]],
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=options.max_poll_interval_ms,
            metadata_max_age_ms=200 if options.pattern else 60_000,
            fetch_max_wait_ms=100,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=100,
        )
        if options.partitions:
            self._consumer.assign([TopicPartition(*each) for each in options.partitions])
        elif options.pattern:
            self._consumer.subscribe(pattern=options.pattern, listener=_Listener(self))
        else:
            self._consumer.subscribe(list(options.topics), listener=_Listener(self))
            # kafka-python joins before it knows the topics: as leader it would assign nothing, and rebalance again.
            for topic in options.topics:
                eventually(partial(self._has_metadata, topic), f"no metadata for {topic}")

    def _has_metadata(self, topic: str) -> bool:
        try:
            self._consumer.partitions_for_topic(topic)
        except KafkaConnectionError:
            # kafka-python asked a broker that is down but still listed. It asks another one next.
            return False
        return True

    def _poll(self) -> list[Record]:
        try:
            batches = self._consumer.poll(POLL_MS if self._is_settled() else JOIN_POLL_MS)
        except BrokerResponseError as error:
            raise _refused(error) from error
        if self.options.pattern and not self._is_settled():
            # kafka-python forgets a join that outlasts the poll it began in, if new metadata was the reason for it.
            self._consumer._coordinator.request_rejoin()
        return [
            Record(record.topic, record.partition, record.offset, record.value)
            for batch in batches.values()
            for record in batch
        ]

    def _is_settled(self) -> bool:
        by_hand = bool(self.options.partitions)
        return by_hand or self._consumer.group_metadata().state is MemberState.STABLE

    def _assigned(self) -> Iterable[Partition]:
        return _plain(self._consumer.assignment())

    def _commit(self, offsets: Mapping[Partition, Committed] | None) -> None:
        wanted = None
        if offsets is not None:
            wanted = {
                TopicPartition(*partition): OffsetAndMetadata(offset, metadata, -1)
                for partition, (offset, metadata) in offsets.items()
            }
        try:
            self._consumer.commit(wanted)
        except CommitFailedError as error:
            raise Refused(COMMIT_FAILED, error) from error
        except BrokerResponseError as error:
            raise _refused(error) from error

    def _committed(self, partition: Partition) -> int | None:
        offset: int | None = self._consumer.committed(TopicPartition(*partition))
        return offset

    def _close(self) -> None:
        self._consumer.close()


class KafkaPythonAdmin(Admin):
    def __init__(self, bootstrap: str) -> None:
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def groups(self) -> dict[str, str | None]:
        return {each["group_id"]: each["group_state"] for each in self._admin.list_groups()}

    def describe(self, group: str) -> Description:
        found = self._admin.describe_groups([group])[group]
        if found["error"] is not None:
            raise Refused(int(re.findall(r"\d+", found["error"])[0]), found["error"])
        members = [
            GroupMember(
                each["client_id"],
                each["group_instance_id"],
                frozenset(
                    (topic["topic"], partition)
                    for topic in (each["member_assignment"] or {}).get("assigned_partitions", [])
                    for partition in topic["partitions"]
                ),
            )
            for each in found["members"]
        ]
        return Description(found["group_state"], found["protocol_data"], members)

    def offsets(self, group: str) -> dict[Partition, Committed]:
        found = self._admin.list_group_offsets(group)[group]
        return {
            (partition.topic, partition.partition): Committed(each.offset, each.metadata)
            for partition, each in found.items()
        }

    def set_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        wanted = {TopicPartition(*partition): offset for partition, offset in offsets.items()}
        for done in self._admin.reset_group_offsets(group, wanted).values():
            _check(done["error"])

    def delete_offsets(self, group: str, partitions: Iterable[Partition]) -> None:
        wanted = [TopicPartition(*each) for each in partitions]
        for error in self._admin.delete_group_offsets(group, wanted).values():
            _check(error)

    def delete(self, group: str) -> None:
        result = self._admin.delete_groups([group])[group]
        if result != "OK":
            _check(getattr(kafka.errors, result))

    def close(self) -> None:
        self._admin.close()


def _check(error: type[BrokerResponseError]) -> None:
    if error is not kafka.errors.NoError:
        raise Refused(error.errno, error.__name__)


class KafkaPython(Library):
    name = "kafka-python"
    assignors = ("range", "roundrobin", "sticky", "cooperative-sticky")

    def member(self, bootstrap: str, options: Options) -> Member:
        return KafkaPythonMember(bootstrap, options)

    def admin(self, bootstrap: str) -> Admin:
        return KafkaPythonAdmin(bootstrap)
