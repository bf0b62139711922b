"""The differences of replicas, from the groups of a comparison. No I/O."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from moldau.client.record import TopicPartition
from moldau.spark.audit.groups import BATCH, RECORD, START, STOP, Group, ReplicaValue
from moldau.spark.audit.plan import PlannedPartition


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a replica from the others."""

    partition: TopicPartition
    replica: int
    offset: int | None
    """None if the replica could not be compared at all."""
    what: str
    reference: int | None = None
    """The broker whose batch or record at `offset` is right, if there is one to compare with."""
    key: bytes | None = None
    count: int = 1
    """The number of batches or keys that differ, without those that could not be read."""


@dataclass(frozen=True, slots=True)
class PartitionResult:
    planned: PlannedPartition
    units: int
    """The number of batches, or of keys."""
    size: int
    """The size of the batches of one replica, in bytes."""
    differences: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        return not self.differences


@dataclass(slots=True)
class _Limits:
    """The offsets of one replica that were read: its values at other offsets are missing for a known reason."""

    start: int
    stop: int | None = None
    reason: str = ""

    def covers(self, offset: int) -> bool:
        return offset >= self.start and (self.stop is None or offset < self.stop)


@dataclass(slots=True)
class _Found:
    first: Difference
    count: int = 0


def partition_results(
    partitions: Iterable[PlannedPartition], groups: Iterable[Group], log_starts: Mapping[TopicPartition, int]
) -> list[PartitionResult]:
    """Returns the result of each partition. `log_starts` are the log start offsets at the end of the audit."""
    by_partition: dict[TopicPartition, list[Group]] = {}
    for group in groups:
        by_partition.setdefault(group.partition, []).append(group)
    results = []
    for planned in partitions:
        found = by_partition.get(planned.topic_partition, [])
        data = [each for each in found if each.kind in (BATCH, RECORD)]
        results.append(
            PartitionResult(
                planned,
                sum(each.set_count for each in data),
                sum(each.size for each in data),
                tuple(_differences(planned, found, log_starts.get(planned.topic_partition, planned.start))),
            )
        )
    return results


def _differences(planned: PlannedPartition, groups: Sequence[Group], log_start: int) -> Iterator[Difference]:
    partition = planned.topic_partition
    for broker in planned.down:
        yield Difference(partition, broker, None, "the broker is down, so its replica was not compared")
    if not planned.is_readable:
        yield Difference(partition, -1, None, "the partition has no leader, so its replicas were not compared")
        return
    found: dict[int, _Found] = {}

    def add(difference: Difference, count: int) -> None:
        known = found.setdefault(difference.replica, _Found(difference))
        known.count += count
        if (difference.offset or 0) < (known.first.offset or 0):
            known.first = difference

    limits = _limits(planned, groups, log_start)
    for broker, limit in limits.items():
        if limit.stop is not None:
            reason = limit.reason + (", and is not in the ISR" if broker in planned.out_of_sync else "")
            add(Difference(partition, broker, limit.stop, reason), 0)
        if limit.start > log_start:
            what = f"its log starts at {limit.start}, the leader's at {log_start}"
            add(Difference(partition, broker, log_start, what), 0)
    for group in groups:
        if group.kind in (BATCH, RECORD) and not group.is_equal:
            for difference in _group_differences(planned, group, limits):
                add(difference, group.set_count)
    for _, each in sorted(found.items()):
        yield replace(each.first, count=max(1, each.count))


def _limits(planned: PlannedPartition, groups: Sequence[Group], log_start: int) -> dict[int, _Limits]:
    limits = {broker: _Limits(0) for broker in planned.brokers}
    for group in groups:
        for value in group.values:
            if group.kind == STOP:
                limits[value.replica].stop = value.offset
                limits[value.replica].reason = value.problem or ""
            elif group.kind == START and value.offset > log_start:
                limits[value.replica].start = value.offset
    return limits


def _group_differences(planned: PlannedPartition, group: Group, limits: Mapping[int, _Limits]) -> Iterator[Difference]:
    """Yields the differences of one set of rows. The reference is the leader's row, or else another sound one."""
    unit = "batch" if group.kind == BATCH else "record"
    values = {each.replica: each for each in group.values if limits[each.replica].covers(group.offset)}
    reference = next((each for each in values.values() if each.problem is None), None)
    leader_is_readable = limits[planned.leader].covers(group.offset) if planned.leader in limits else False
    is_extra = leader_is_readable and planned.leader not in values
    for broker in planned.brokers:
        value = values.get(broker)
        if value is None:
            if limits[broker].covers(group.offset) and reference is not None and not is_extra:
                yield _difference(group, broker, reference, f"the {unit} is missing")
        elif value.problem is not None:
            yield _difference(group, broker, reference, value.problem, value)
        elif is_extra:
            yield _difference(group, broker, None, f"the leader does not have the {unit}", value)
        elif reference is not None and value.digest != reference.digest:
            yield _difference(group, broker, reference, _what_differs(group, value, reference), value)


def _difference(
    group: Group, broker: int, reference: ReplicaValue | None, what: str, value: ReplicaValue | None = None
) -> Difference:
    offset = group.offset if value is None else value.offset
    other = None if reference is None or reference.replica == broker else reference.replica
    return Difference(group.partition, broker, offset, what, other, group.key)


def _what_differs(group: Group, value: ReplicaValue, reference: ReplicaValue) -> str:
    if group.kind == BATCH:
        return "the batch has other bytes"
    if value.offset != reference.offset:
        return f"the latest record of the key has offset {value.offset} instead of {reference.offset}"
    names = ("offset", "timestamp", "value", "headers")
    parts = zip(names, (value.digest or "").split("/"), (reference.digest or "").split("/"), strict=True)
    differing = [name for name, own, right in parts if own != right]
    return f"the latest record of the key has another {' and '.join(differing)}"
