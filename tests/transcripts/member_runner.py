"""Runs the commands of a transcript on a MembershipManager and prints its effects and its state.

Responses go to the last request in flight; `after` advances the time.
"""

from moldau.client.errors import ErrorCode
from moldau.client.group.assignors import JoinGroupMember, get_assignor
from moldau.client.group.events import (
    AssignPartitions,
    Closed,
    CommitFailed,
    CommitOffsets,
    CoordinatorFound,
    CoordinatorNotFound,
    Effect,
    Event,
    FetchMetadata,
    FindCoordinator,
    HeartbeatResponse,
    HeartbeatTick,
    JoinResponse,
    LogWarning,
    LosePartitions,
    MetadataChanged,
    MetadataFetchCompleted,
    RaiseError,
    RevokeAll,
    RevokePartitions,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    SubscriptionChanged,
    SyncResponse,
    Unsubscribed,
    UserPoll,
)
from moldau.client.group.member_state import GroupRebalanceConfig
from moldau.client.group.membership_manager import MembershipManager
from moldau.wire.consumer_protocol import (
    Assignment,
    Partition,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)


class MemberTranscriptRunner:
    def __init__(self) -> None:
        self._now_ms = 0
        self._member = MembershipManager(GroupRebalanceConfig("g", (get_assignor("range"),)))
        self._attempt = 0
        self._heartbeat_id = 0

    async def execute(self, command: str) -> list[str]:
        verb, *words = command.split()
        lines: list[str] = getattr(self, f"_{verb.replace('-', '_')}")(*words)
        return [*lines, self._format_state()]

    # Commands

    def _consumer(self, *words: str) -> list[str]:
        """`consumer range sticky instance=a auto_commit=no`"""
        options = dict(word.split("=") for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        self._member = MembershipManager(
            GroupRebalanceConfig(
                "g",
                tuple(get_assignor(name) for name in names),
                options.get("instance"),
                poll_interval_max_ms=int(options.get("poll_interval", "300000")),
                auto_commit=options.get("auto_commit", "yes") == "yes",
            )
        )
        return []

    def _subscribe(self, *topics: str) -> list[str]:
        return self._step(SubscriptionChanged(topics))

    def _poll(self) -> list[str]:
        return self._step(UserPoll())

    def _after(self, wait_ms: str) -> list[str]:
        self._now_ms += int(wait_ms)
        return self._step(HeartbeatTick())

    def _found(self, node_id: str) -> list[str]:
        return self._step(CoordinatorFound(int(node_id)))

    def _not_found(self, code: str) -> list[str]:
        return self._step(CoordinatorNotFound(ErrorCode[code]))

    def _join_failed(self, code: str, member_id: str = "") -> list[str]:
        return self._step(JoinResponse(self._attempt, ErrorCode[code], member_id=member_id))

    def _joined(self, *words: str) -> list[str]:
        """`joined generation=1 as=m1 leader=m1 protocol=range m1=orders m2=orders,payments`"""
        options = dict(word.split("=") for word in words)
        generation, member_id = int(options.pop("generation")), options.pop("as")
        leader_id, protocol = options.pop("leader"), options.pop("protocol", "range")
        skip = options.pop("skip", "no") == "yes"
        members = tuple(
            JoinGroupMember(who, None, encode_subscription(Subscription(tuple(topics.split(",")))))
            for who, topics in options.items()
        )
        return self._step(
            JoinResponse(self._attempt, ErrorCode.none, generation, member_id, leader_id, protocol, members, skip)
        )

    def _metadata(self, *words: str) -> list[str]:
        return self._step(MetadataFetchCompleted(self._attempt, _parse_counts(words)))

    def _metadata_changes(self, *words: str) -> list[str]:
        return self._step(MetadataChanged(_parse_counts(words)))

    def _synced(self, *partitions: str) -> list[str]:
        assignment = encode_assignment(Assignment(tuple(_parse_partition(each) for each in partitions)))
        return self._step(SyncResponse(self._attempt, assignment=assignment))

    def _sync_failed(self, code: str) -> list[str]:
        return self._step(SyncResponse(self._attempt, ErrorCode[code]))

    def _heartbeat_response(self, code: str) -> list[str]:
        return self._step(HeartbeatResponse(self._heartbeat_id, ErrorCode[code]))

    def _commit_failed(self, code: str) -> list[str]:
        return self._step(CommitFailed(self._member.generation, ErrorCode[code]))

    def _unsubscribe(self) -> list[str]:
        return [*self._step(RevokeAll(commit=False)), *self._step(Unsubscribed())]

    def _close(self) -> list[str]:
        return [*self._step(RevokeAll(commit=True)), *self._step(Closed())]

    # Output

    def _step(self, event: Event) -> list[str]:
        return [self._format_effect(effect) for effect in self._member.step(self._now_ms, event)]

    def _format_effect(self, effect: Effect) -> str:
        match effect:
            case FindCoordinator():
                return "send     FindCoordinator"
            case SendJoin():
                self._attempt = effect.attempt
                who = f"as {effect.member_id}" if effect.member_id else "without a member id"
                text = "; ".join(_format_subscription(name, data) for name, data in effect.protocols)
                why = f" because {effect.reason}" if effect.reason else ""
                return f"send     JoinGroup to node {effect.coordinator} {who}: {text}{why}"
            case FetchMetadata():
                return f"send     Metadata of {', '.join(effect.topics)}"
            case SendSync():
                assignments = [
                    f"{who} {_format_partitions(decode_assignment(what).partitions)}"
                    for who, what in effect.assignments
                ]
                return f"send     SyncGroup of generation {effect.generation.generation_id}: " + (
                    "; ".join(assignments) or "no assignments"
                )
            case SendHeartbeat():
                self._heartbeat_id = effect.heartbeat_id
                return f"send     Heartbeat of generation {effect.generation.generation_id}"
            case SendLeave():
                return f"send     LeaveGroup of {effect.member_id}: {effect.reason}"
            case CommitOffsets():
                return "commit   consumed offsets"
            case RevokePartitions(partitions):
                return f"revoke   {_format_partitions(partitions)}"
            case LosePartitions(partitions):
                return f"lose     {_format_partitions(partitions)}"
            case AssignPartitions(partitions, added):
                return f"assign   {_format_partitions(added)}; now {_format_partitions(partitions)}"
            case LogWarning(message):
                return f"warn     {message}"
            case RaiseError(error):
                return f"raise    {error}"

    def _format_state(self) -> str:
        member = self._member
        generation = member.generation
        parts = [member.state.value]
        if generation.generation_id >= 0:
            parts.append(f"generation {generation.generation_id}")
        if generation.member_id:
            parts.append(f"as {generation.member_id}{', leader' if member.is_leader else ''}")
        parts.append("coordinator unknown" if member.coordinator is None else f"coordinator {member.coordinator}")
        tick_at_ms = member.next_heartbeat_at_ms()
        if tick_at_ms is not None:
            parts.append(f"next tick in {tick_at_ms - self._now_ms} ms")
        return f"member   {', '.join(parts)}"


def _parse_counts(words: tuple[str, ...]) -> dict[str, int]:
    return {topic: int(count) for topic, count in (word.split("=") for word in words)}


def _parse_partition(text: str) -> Partition:
    topic, _, index = text.rpartition("-")
    return topic, int(index)


def _format_partitions(partitions: tuple[Partition, ...]) -> str:
    return " ".join(f"{topic}-{index}" for topic, index in partitions) or "nothing"


def _format_subscription(name: str, data: bytes) -> str:
    subscription = decode_subscription(data)
    text = f"{name} subscribes to {' '.join(subscription.topics) or 'nothing yet'}"
    if subscription.owned_partitions:
        text += f" and owns {_format_partitions(subscription.owned_partitions)}"
    return text
