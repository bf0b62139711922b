"""Stateful model test: offsets of transactions against Kafka's rule, which compares the offsets of records.

The state remembers no record offsets of committed offsets, and must come to the same result, also after a restart and
after compaction of the log.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moldau.errors import MoldauError
from moldau.groups.requests import TopicPartition
from support.groups import RETENTION_MS, TOPIC_ID, ShardHarness, offset, standalone_identity

GROUPS = ["a", "b"]
PLACES: list[TopicPartition] = [("orders", 0), ("other", 1)]

groups = st.sampled_from([*GROUPS, "a", "a"])
"""Mostly one group, so that transactions meet."""
places = st.sampled_from(PLACES)
producers = st.integers(1, 2)
numbers = st.integers(0, 99)

Key = tuple[str, TopicPartition]


class Commit(NamedTuple):
    record_offset: int
    number: int


@dataclass
class KafkaOffsets:
    """The rule as Kafka's OffsetMetadataManager has it."""

    committed: dict[Key, Commit] = field(default_factory=dict)
    pending: dict[int, dict[Key, Commit]] = field(default_factory=dict)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        for key, pending in self.pending.pop(producer_id, {}).items():
            known = self.committed.get(key)
            if commit and (known is None or known.record_offset < pending.record_offset):
                self.committed[key] = pending

    def delete(self, key: Key) -> None:
        self.committed.pop(key, None)
        for pending in self.pending.values():
            pending.pop(key, None)

    def committed_by(self, name: str) -> dict[TopicPartition, int]:
        return {place: commit.number for (group, place), commit in self.committed.items() if group == name}

    def is_pending(self, key: Key) -> bool:
        return any(key in pending for pending in self.pending.values())


class TransactionalOffsetsModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.shard = ShardHarness()
        self.kafka = KafkaOffsets()

    @rule(name=groups, place=places, number=numbers)
    def commit(self, name: str, place: TopicPartition, number: int) -> None:
        self.shard.commit(standalone_identity(name), offset(*place, number))
        self.kafka.committed[name, place] = Commit(self.shard.end_offset, number)

    @rule(producer_id=producers, name=groups, committed=st.dictionaries(places, numbers, min_size=1))
    def commit_transactional(self, producer_id: int, name: str, committed: dict[TopicPartition, int]) -> None:
        offsets = [offset(*place, number) for place, number in committed.items()]
        self.shard.commit_transactional(producer_id, standalone_identity(name), *offsets)
        pending = self.kafka.pending.setdefault(producer_id, {})
        for place, number in committed.items():
            pending[name, place] = Commit(self.shard.end_offset, number)

    @rule(producer_id=producers, name=groups, place=places)
    def commit_is_not_written(self, producer_id: int, name: str, place: TopicPartition) -> None:
        self.shard.fail_writes = True
        for commit in (
            lambda: self.shard.commit(standalone_identity(name), offset(*place, -7)),
            lambda: self.shard.commit_transactional(producer_id, standalone_identity(name), offset(*place, -7)),
        ):
            try:
                commit()
            except MoldauError:
                continue
            raise AssertionError("the write must fail")
        self.shard.fail_writes = False

    @rule(producer_id=producers, commit=st.booleans())
    def end_transaction(self, producer_id: int, commit: bool) -> None:
        self.shard.end_transaction(producer_id, commit=commit)
        self.kafka.end_transaction(producer_id, commit=commit)

    @rule(kind=st.sampled_from(["offset", "group", "topic"]), name=groups, place=places)
    def delete(self, kind: str, name: str, place: TopicPartition) -> None:
        if kind == "topic":
            self.shard.on_topics_deleted((place[0], TOPIC_ID))
            deleted = [(each, (topic, index)) for each in GROUPS for topic, index in PLACES if topic == place[0]]
        elif name not in self.shard.listed():
            return
        elif kind == "group":
            self.shard.delete_group(name)
            deleted = [(name, each) for each in PLACES]
        else:
            assert self.shard.delete_offsets(name, place) == {place: None}
            deleted = [(name, place)]
        for key in deleted:
            self.kafka.delete(key)

    @rule()
    def expire_offsets(self) -> None:
        self.shard.advance(RETENTION_MS)
        self.shard.expire_offsets()
        for key in list(self.kafka.committed):
            if not self.kafka.is_pending(key):
                self.kafka.delete(key)

    @rule(compacted=st.booleans())
    def restart(self, compacted: bool) -> None:
        self.shard = self.shard.compacted() if compacted else self.shard.restarted()

    @invariant()
    def offsets_are_those_of_kafka(self) -> None:
        for shard in (self.shard, self.shard.restarted(), self.shard.compacted()):
            for name in GROUPS:
                expected = self.kafka.committed_by(name)
                assert shard.committed(name) == expected
                for place, found in shard.fetch_stable(name, PLACES).items():
                    is_pending = self.kafka.is_pending((name, place))
                    assert found == ("UnstableOffsetCommitError" if is_pending else expected.get(place))

    @invariant()
    def groups_exist_while_they_have_offsets(self) -> None:
        for shard in (self.shard, self.shard.restarted(), self.shard.compacted()):
            pending = [name for offsets in self.kafka.pending.values() for name, _ in offsets]
            assert {*pending, *(name for name, _ in self.kafka.committed)} <= {*shard.listed()}


TransactionalOffsetsModel.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestTransactionalOffsets = TransactionalOffsetsModel.TestCase
