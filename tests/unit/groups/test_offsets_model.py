"""Stateful model test: offsets are what was last committed and written, in any order of operations and crashes."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moldau.errors import MoldauError, UnknownMemberIdError
from moldau.groups.requests import MemberIdentity, TopicPartition
from support.groups import RETENTION_MS, SESSION_MS, TOPIC_ID, ShardHarness, offset, standalone_identity

names = st.sampled_from(["a", "b"])
topics = st.sampled_from(["orders", "other"])
partitions = st.integers(0, 1)


class OffsetsModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.groups = ShardHarness()
        self.offsets: dict[str, dict[TopicPartition, int]] = {"a": {}, "b": {}}
        self.members: dict[str, MemberIdentity] = {}

    @rule(name=names, topic=topics, partition=partitions, number=st.integers(0, 99), by_member=st.booleans())
    def commit(self, name: str, topic: str, partition: int, number: int, by_member: bool) -> None:
        identity = self.members.get(name, standalone_identity(name)) if by_member else standalone_identity(name)
        try:
            self.groups.commit(identity, offset(topic, partition, number))
        except MoldauError:
            return
        self.offsets[name][topic, partition] = number

    @rule(name=names, topic=topics, partition=partitions)
    def commit_is_not_written(self, name: str, topic: str, partition: int) -> None:
        self.groups.fail_writes = True
        try:
            self.groups.commit(standalone_identity(name), offset(topic, partition, -7))
        except MoldauError:
            pass
        finally:
            self.groups.fail_writes = False

    @rule(name=names, topic=topics)
    def join_and_sync(self, name: str, topic: str) -> None:
        if not self.groups.listed(["Stable"]) or name not in self.members:
            self.groups.advance(2 * SESSION_MS)
            self.members[name] = self.groups.join_and_sync(name, topics=[topic])

    @rule(name=names)
    def leave(self, name: str) -> None:
        identity = self.members.pop(name, None)
        if identity is not None:
            is_member = name in self.groups.listed(["Stable"])
            error = self.groups.leave_error(identity)
            assert (error is None) is is_member, "who is a member can leave, and nobody else"
            assert is_member or isinstance(error, UnknownMemberIdError)

    @rule(name=names)
    def delete_group(self, name: str) -> None:
        try:
            self.groups.delete_group(name)
        except MoldauError:
            return
        self.offsets[name].clear()

    @rule(name=names, topic=topics, partition=partitions)
    def delete_offset(self, name: str, topic: str, partition: int) -> None:
        try:
            errors = self.groups.delete_offsets(name, (topic, partition))
        except MoldauError:
            return
        if errors[topic, partition] is None:
            self.offsets[name].pop((topic, partition), None)

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        self.groups.on_topics_deleted((topic, TOPIC_ID), (topic, None))
        for committed in self.offsets.values():
            for place in [place for place in committed if place[0] == topic]:
                del committed[place]

    @rule(ms=st.sampled_from([1, SESSION_MS, RETENTION_MS // 2]))
    def time_passes(self, ms: int) -> None:
        self.groups.advance(ms)

    @rule()
    def expire_offsets(self) -> None:
        before = {name: self.groups.fetch(name) for name in self.offsets}
        live = self.groups.listed(["Stable", "PreparingRebalance", "CompletingRebalance"])
        self.groups.expire_offsets()
        for name, committed in self.offsets.items():
            for place in [place for place in committed if place not in self.groups.fetch(name)]:
                gone = before[name][place]
                assert gone is not None
                assert self.groups.now.wall_ms - gone.commit_timestamp_ms >= RETENTION_MS
                assert name not in live or place[0] not in self.groups.topics_of(name)
                del committed[place]

    @rule()
    def restart(self) -> None:
        self.groups = self.groups.restarted()

    @invariant()
    def offsets_are_what_was_committed(self) -> None:
        for name, committed in self.offsets.items():
            assert self.groups.committed(name) == committed

    @invariant()
    def a_restart_would_change_nothing(self) -> None:
        after = self.groups.restarted()
        for name in self.offsets:
            assert after.fetch(name) == self.groups.fetch(name)


OffsetsModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestOffsets = OffsetsModel.TestCase
