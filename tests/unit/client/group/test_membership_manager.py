"""The membership state machine, step by step; longer runs are in `tests/transcripts/member_*.txt`."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moldau.client.errors import ErrorCode
from moldau.client.group.assignors import (
    NO_USER_DATA,
    AssignmentUserData,
    JoinGroupMember,
    decode_user_data,
    encode_user_data,
    get_assignor,
    perform_assignment,
)
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
from moldau.client.group.member_state import GroupRebalanceConfig, MemberState
from moldau.client.group.membership_manager import JOIN_GROUP_TIMEOUT_LAPSE_MS, MembershipManager
from moldau.client.group.sticky_assignment import SubscribedMember
from moldau.wire.consumer_protocol import (
    Assignment,
    Partition,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

ORDERS = (("orders", 0), ("orders", 1))


def member(*assignors: str, instance_id: str | None = None, auto_commit: bool = True) -> MembershipManager:
    chosen = tuple(get_assignor(name) for name in assignors or ("range",))
    return MembershipManager(GroupRebalanceConfig("g", chosen, instance_id, auto_commit=auto_commit))


def assignment(*partitions: Partition) -> bytes:
    return encode_assignment(Assignment(partitions))


def joined(who: MembershipManager, attempt: int, generation_id: int = 1, protocol: str = "range") -> list[Effect]:
    return who.step(0, JoinResponse(attempt, ErrorCode.none, generation_id, "m1", "other", protocol))


def stable(*assignors: str, partitions: tuple[Partition, ...] = ORDERS, **options: str | None) -> MembershipManager:
    who = member(*assignors, **options)  # type: ignore[arg-type]
    who.step(0, SubscriptionChanged(("orders",)))
    who.step(0, UserPoll())
    who.step(0, CoordinatorFound(1))
    [join] = who.step(0, UserPoll())
    assert isinstance(join, SendJoin)
    joined(who, join.attempt)
    who.step(0, SyncResponse(join.attempt, assignment=assignment(*partitions)))
    who.step(0, UserPoll())
    assert who.state is MemberState.STABLE
    return who


def rejoining(who: MembershipManager) -> SendJoin:
    """Heard of a rebalance, and polled until the join is out."""
    who.step(0, CommitFailed(who.generation, ErrorCode.rebalance_in_progress))
    while True:
        for effect in who.step(0, UserPoll()):
            if isinstance(effect, SendJoin):
                return effect


def test_a_join_carries_the_subscription_for_each_assignor() -> None:
    who = member("range", "cooperative-sticky")
    who.step(0, SubscriptionChanged(("b", "a")))
    assert who.step(0, UserPoll()) == [FindCoordinator()]
    who.step(0, CoordinatorFound(7))
    [join] = who.step(0, UserPoll())
    assert isinstance(join, SendJoin)
    assert (join.coordinator, join.member_id, join.timeout_ms) == (7, "", 300_000 + JOIN_GROUP_TIMEOUT_LAPSE_MS)
    assert [name for name, _ in join.protocols] == ["range", "cooperative-sticky"]
    assert {decode_subscription(data) for _, data in join.protocols} == {Subscription(("a", "b"))}


def test_one_eager_assignor_makes_the_member_eager() -> None:
    assert stable("range", "cooperative-sticky").step(0, RevokeAll(commit=True)) == [
        CommitOffsets(),
        RevokePartitions(ORDERS),
    ]
    who = stable("range", "cooperative-sticky")
    who.step(0, CommitFailed(who.generation, ErrorCode.rebalance_in_progress))
    assert who.step(0, UserPoll()) == [CommitOffsets(), RevokePartitions(ORDERS)]


def test_without_auto_commit_nothing_is_committed_for_the_user() -> None:
    who = stable("range", auto_commit=False)  # type: ignore[arg-type]
    who.step(0, CommitFailed(who.generation, ErrorCode.rebalance_in_progress))
    assert who.step(0, UserPoll()) == [RevokePartitions(ORDERS)]


def test_a_cooperative_join_carries_owned_partitions_and_generation() -> None:
    join = rejoining(stable("cooperative-sticky"))
    subscription = decode_subscription(join.protocols[0][1])
    assert (subscription.owned_partitions, subscription.generation_id) == (ORDERS, 1)


def test_a_sticky_join_carries_the_previous_assignment() -> None:
    subscription = decode_subscription(rejoining(stable("sticky")).protocols[0][1])
    assert subscription.owned_partitions == ()
    assert subscription.user_data is not None
    assert b"orders" in subscription.user_data


def test_the_leader_assigns_the_partitions_of_the_metadata() -> None:
    who = member()
    who.step(0, SubscriptionChanged(("orders",)))
    who.step(0, CoordinatorFound(1))
    [join] = who.step(0, UserPoll())
    assert isinstance(join, SendJoin)
    members = tuple(
        JoinGroupMember(each, None, encode_subscription(Subscription(topics)))
        for each, topics in (("m1", ("orders",)), ("m2", ("orders", "payments", "missing")))
    )
    answer = JoinResponse(join.attempt, ErrorCode.none, 1, "m1", "m1", "range", members)
    assert who.step(0, answer) == [FetchMetadata(join.attempt, ("missing", "orders", "payments"))]
    [sync] = who.step(0, MetadataFetchCompleted(join.attempt, {"orders": 2, "payments": 1, "other": 9}))
    assert isinstance(sync, SendSync)
    assert {each: decode_assignment(data).partitions for each, data in sync.assignments} == {
        "m1": (("orders", 0),),
        "m2": (("orders", 1), ("payments", 0)),
    }


def came_back(share: bytes, *, leads: bool = False) -> MembershipManager:
    """A static member after a restart, with the assignment that it finds."""
    who = member("cooperative-sticky", instance_id="static")
    who.step(0, SubscriptionChanged(("orders",)))
    who.step(0, UserPoll())
    who.step(0, CoordinatorFound(1))
    [join] = who.step(0, UserPoll())
    assert isinstance(join, SendJoin)
    subscription = encode_subscription(Subscription(("orders",)))
    others = (JoinGroupMember("m1", "static", subscription),) if leads else ()
    leader = "m1" if leads else "other"
    answer = JoinResponse(
        join.attempt, ErrorCode.none, 2, "m1", leader, "cooperative-sticky", others, skip_assignment=leads
    )
    who.step(0, answer)
    who.step(0, MetadataFetchCompleted(join.attempt, {"orders": 2}))
    who.step(0, SyncResponse(join.attempt, assignment=share))
    assert who.step(0, UserPoll()) == [AssignPartitions(ORDERS[:1], ORDERS[:1])]
    return who


def joins_again(who: MembershipManager) -> bool:
    return any(isinstance(effect, SendJoin) for _ in range(3) for effect in who.step(0, UserPoll()))


def test_a_restarted_static_member_completes_the_handover() -> None:
    """Otherwise the partitions to hand over would have no owner until the next rebalance."""
    owner = Subscription(("orders",), None, ORDERS, 1)
    members = [SubscribedMember("m1", owner, "static"), SubscribedMember("m2", Subscription(("orders",)))]
    shares = dict(perform_assignment(get_assignor("cooperative-sticky"), {"orders": 2}, members, "m2"))
    assert decode_assignment(shares["m1"]).partitions == ORDERS[:1]
    assert decode_assignment(shares["m2"]) == Assignment(())
    assert joins_again(came_back(shares["m1"]))
    assert not joins_again(came_back(assignment(*ORDERS[:1])))


def test_a_restarted_static_leader_detects_new_partitions() -> None:
    members = [SubscribedMember("m1", Subscription(("orders",), None, ORDERS[:1], 1), "static")]
    shares = dict(perform_assignment(get_assignor("cooperative-sticky"), {"orders": 1}, members, "m1"))
    assert joins_again(came_back(shares["m1"], leads=True))
    same = encode_assignment(Assignment(ORDERS[:1], encode_user_data(AssignmentUserData(False, {"orders": 2}))))
    assert not joins_again(came_back(same, leads=True))


def test_members_that_are_not_static_leave_no_note() -> None:
    members = [
        SubscribedMember("m1", Subscription(("orders",), None, ORDERS, 1)),
        SubscribedMember("m2", Subscription(("orders",)), "static"),
    ]
    for _, data in perform_assignment(get_assignor("cooperative-sticky"), {"orders": 2}, members, "m1"):
        assert decode_assignment(data).user_data is None


@pytest.mark.parametrize("data", [None, b"", b"\x00\x01", b"[]", b"3", b'{"partition_counts":[1]}', b'{"a":1}'])
def test_user_data_of_other_clients_is_ignored(data: bytes | None) -> None:
    assert decode_user_data(data) == NO_USER_DATA


def test_a_leader_without_metadata_joins_again() -> None:
    who = member()
    who.step(0, SubscriptionChanged(("orders",)))
    who.step(0, CoordinatorFound(1))
    [join] = who.step(0, UserPoll())
    assert isinstance(join, SendJoin)
    mine = JoinGroupMember("m1", None, encode_subscription(Subscription(("orders",))))
    who.step(0, JoinResponse(join.attempt, ErrorCode.none, 1, "m1", "m1", "range", (mine,)))
    assert who.step(0, MetadataFetchCompleted(join.attempt, None)) == []
    [again] = who.step(0, UserPoll())
    assert isinstance(again, SendJoin)
    assert again.member_id == "m1"


@pytest.mark.parametrize(
    "answer",
    [
        JoinResponse(1, ErrorCode.none, 1, "m1", "m1", "range", (JoinGroupMember("m2", None, b"\x00"),)),
        JoinResponse(
            1,
            ErrorCode.none,
            1,
            "m1",
            "m1",
            "unheard-of",
            (JoinGroupMember("m1", None, encode_subscription(Subscription(("orders",)))),),
        ),
    ],
    ids=["a subscription that is none", "an assignor that is not ours"],
)
def test_a_failed_assignment_is_raised(answer: JoinResponse) -> None:
    who = member()
    who.step(0, SubscriptionChanged(("orders",)))
    who.step(0, CoordinatorFound(1))
    who.step(0, UserPoll())
    who.step(0, answer)
    who.step(0, MetadataFetchCompleted(1, {"orders": 1}))
    [fail] = who.step(0, UserPoll())
    assert isinstance(fail, RaiseError)
    assert fail.error.code == ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize("data", [b"\x00", assignment(("payments", 0))], ids=["no assignment", "a topic of others"])
def test_an_assignment_that_cannot_be_is_not_taken(data: bytes) -> None:
    who = member()
    who.step(0, SubscriptionChanged(("orders",)))
    who.step(0, CoordinatorFound(1))
    who.step(0, UserPoll())
    joined(who, 1)
    who.step(0, SyncResponse(1, assignment=data))
    assert who.state is MemberState.UNJOINED
    assert not any(isinstance(effect, AssignPartitions) for effect in who.step(0, UserPoll()))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.group_authorization_failed,
        ErrorCode.inconsistent_group_protocol,
        ErrorCode.invalid_session_timeout,
        ErrorCode.invalid_group_id,
        ErrorCode.group_max_size_reached,
        ErrorCode.unsupported_version,
    ],
)
def test_a_join_that_can_never_succeed_is_raised_once_each_time(code: ErrorCode) -> None:
    who = member()
    who.step(0, SubscriptionChanged(("orders",)))
    who.step(0, CoordinatorFound(1))
    for attempt in (1, 2):
        [join] = who.step(10_000 * attempt, UserPoll())
        assert isinstance(join, SendJoin)
        who.step(10_000 * attempt, JoinResponse(join.attempt, code))
        [fail] = who.step(10_000 * attempt, UserPoll())
        assert isinstance(fail, RaiseError)
        assert fail.error.code == code


def test_responses_to_an_earlier_attempt_are_ignored() -> None:
    who = stable()
    join = rejoining(who)
    late = join.attempt - 1
    assert joined(who, late, generation_id=9) == []
    assert who.step(0, SyncResponse(late, assignment=assignment(("orders", 5)))) == []
    assert who.step(0, MetadataFetchCompleted(late, {"orders": 9})) == []
    assert (who.state, who.generation.generation_id) == (MemberState.JOINING, 1)
    joined(who, join.attempt, 2)
    who.step(0, SyncResponse(late, assignment=assignment(("orders", 0))))
    who.step(0, SyncResponse(late, ErrorCode.unknown_member_id))
    assert (who.state, who.generation.generation_id) == (MemberState.SYNCING, 2)


def test_a_heartbeat_response_of_a_lost_coordinator_is_ignored() -> None:
    who = stable()
    [first] = who.step(3_000, HeartbeatTick())
    assert isinstance(first, SendHeartbeat)
    who.step(45_000, HeartbeatTick())
    who.step(45_000, CoordinatorFound(2))
    assert who.step(45_000, HeartbeatResponse(first.heartbeat_id, ErrorCode.request_timed_out)) == []
    assert who.coordinator == 2
    [second] = who.step(45_000, HeartbeatTick())
    assert isinstance(second, SendHeartbeat)
    assert (second.coordinator, second.generation) == (2, who.generation)


def test_one_heartbeat_is_in_flight_at_a_time() -> None:
    who = stable()
    assert len(who.step(3_000, HeartbeatTick())) == 1
    assert who.step(6_000, HeartbeatTick()) == []
    assert who.step(9_000, HeartbeatTick()) == []


def test_a_failed_heartbeat_is_retried_after_the_backoff() -> None:
    who = stable()
    [heartbeat_id] = who.step(3_000, HeartbeatTick())
    assert isinstance(heartbeat_id, SendHeartbeat)
    who.step(3_010, HeartbeatResponse(heartbeat_id.heartbeat_id, ErrorCode.coordinator_load_in_progress))
    assert who.next_heartbeat_at_ms() == 3_110
    assert [type(each) for each in who.step(3_110, HeartbeatTick())] == [SendHeartbeat]


def test_lookups_that_return_the_same_failing_coordinator_back_off() -> None:
    who = stable()
    beats = []
    now_ms = 3_000
    while now_ms < 10_000:
        effects = who.step(now_ms, HeartbeatTick())
        for effect in effects:
            if isinstance(effect, SendHeartbeat):
                beats.append(now_ms)
                effects += who.step(now_ms, HeartbeatResponse(effect.heartbeat_id, ErrorCode.not_coordinator))
            elif isinstance(effect, FindCoordinator):
                who.step(now_ms, CoordinatorFound(1))
        assert len(beats) < 15
        at_ms = who.next_heartbeat_at_ms()
        assert at_ms is not None
        now_ms = max(now_ms, at_ms)
    assert beats[:2] == [3_000, 3_000]


def test_no_heartbeats_are_sent_while_a_join_is_in_flight() -> None:
    who = stable()
    rejoining(who)
    assert who.next_heartbeat_at_ms() is None
    assert who.step(200_000, HeartbeatTick()) == []


def test_heartbeats_start_with_the_join_response() -> None:
    """Whoever waits long for the leader's assignment is not to be given up for dead meanwhile."""
    who = stable()
    join = rejoining(who)
    joined(who, join.attempt, 2)
    assert who.state is MemberState.SYNCING
    [heartbeat_id] = who.step(3_000, HeartbeatTick())
    assert isinstance(heartbeat_id, SendHeartbeat)
    assert heartbeat_id.generation.generation_id == 2
    assert who.step(3_000, HeartbeatResponse(heartbeat_id.heartbeat_id, ErrorCode.rebalance_in_progress)) == []
    assert who.state is MemberState.SYNCING


def test_a_member_that_loses_its_generation_drops_the_pending_assignment() -> None:
    who = stable("cooperative-sticky")
    join = rejoining(who)
    joined(who, join.attempt, 2)
    who.step(0, SyncResponse(join.attempt, assignment=assignment(("orders", 0))))
    who.step(0, CommitFailed(who.generation, ErrorCode.unknown_member_id))
    assert who.step(0, UserPoll()) == [LosePartitions(ORDERS)]
    [again] = who.step(0, UserPoll())
    assert isinstance(again, SendJoin)
    assert again.member_id == ""


def test_a_commit_error_of_an_older_generation_is_ignored() -> None:
    who = stable()
    old = who.generation
    join = rejoining(who)
    joined(who, join.attempt, 2)
    assert who.step(0, CommitFailed(old, ErrorCode.illegal_generation)) == []
    assert who.generation.generation_id == 2


def test_metadata_that_changes_between_assigning_and_polling_is_not_missed() -> None:
    who = member()
    who.step(0, SubscriptionChanged(("orders",)))
    who.step(0, CoordinatorFound(1))
    [join] = who.step(0, UserPoll())
    assert isinstance(join, SendJoin)
    mine = JoinGroupMember("m1", None, encode_subscription(Subscription(("orders",))))
    who.step(0, JoinResponse(join.attempt, ErrorCode.none, 1, "m1", "m1", "range", (mine,)))
    who.step(0, MetadataFetchCompleted(join.attempt, {"orders": 1}))
    who.step(0, MetadataChanged({"orders": 2}))
    who.step(0, SyncResponse(join.attempt, assignment=assignment(("orders", 0))))
    assert [type(each) for each in who.step(0, UserPoll())] == [AssignPartitions]
    assert [type(each) for each in who.step(0, UserPoll())] == [CommitOffsets, RevokePartitions]
    assert [type(each) for each in who.step(0, UserPoll())] == [SendJoin]


def test_a_follower_does_not_mind_metadata() -> None:
    who = stable()
    who.step(0, MetadataChanged({"orders": 9}))
    assert who.step(0, UserPoll()) == []


def test_topics_that_do_not_exist_are_joined_for_all_the_same() -> None:
    who = member()
    who.step(0, SubscriptionChanged(()))
    who.step(0, CoordinatorFound(1))
    [join] = who.step(0, UserPoll())
    assert isinstance(join, SendJoin)
    joined(who, join.attempt)
    who.step(0, SyncResponse(join.attempt, assignment=b""))
    assert who.step(0, UserPoll()) == [AssignPartitions((), ())]


def test_a_fatal_coordinator_lookup_error_is_raised() -> None:
    who = member()
    who.step(0, SubscriptionChanged(("orders",)))
    who.step(0, UserPoll())
    who.step(0, CoordinatorNotFound(ErrorCode.group_authorization_failed, "no"))
    [fail] = who.step(0, UserPoll())
    assert isinstance(fail, RaiseError)
    assert fail.error.code == ErrorCode.group_authorization_failed


def test_the_next_poll_time_is_known() -> None:
    who = stable()
    assert who.next_poll_at_ms() is None
    join = rejoining(who)
    assert who.next_poll_at_ms() is None
    for attempt, exponential_backoff_ms in ((0, 0), (1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (6, 1_000)):
        who.step(0, JoinResponse(join.attempt, ErrorCode.coordinator_load_in_progress))
        assert who.next_poll_at_ms() == exponential_backoff_ms, attempt
        [again] = who.step(exponential_backoff_ms, UserPoll())
        assert isinstance(again, SendJoin)
        join = again


def test_unsubscribing_leaves_the_group_and_subscribing_joins_it_again() -> None:
    who = stable()
    assert who.step(0, RevokeAll(commit=False)) == [RevokePartitions(ORDERS)]
    assert [type(each) for each in who.step(0, Unsubscribed())] == [SendLeave]
    assert who.step(0, UserPoll()) == []
    who.step(0, SubscriptionChanged(("payments",)))
    [join] = who.step(0, UserPoll())
    assert isinstance(join, SendJoin)
    assert (join.member_id, join.reason) == ("", "")


def test_a_static_member_that_closes_does_not_leave() -> None:
    who = stable(instance_id="a")
    assert who.step(0, RevokeAll(commit=True)) == [CommitOffsets(), RevokePartitions(ORDERS)]
    assert who.step(0, Closed()) == []
    assert who.step(0, UserPoll()) == []


CODES = st.sampled_from(
    [
        *[ErrorCode.none] * 20,
        ErrorCode.rebalance_in_progress,
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        ErrorCode.member_id_required,
        ErrorCode.group_max_size_reached,
        ErrorCode.fenced_instance_id,
        ErrorCode.unknown_server_error,
    ]
)
USER_EFFECTS = (CommitOffsets, RevokePartitions, LosePartitions, AssignPartitions, RaiseError)


class AnyLife(RuleBasedStateMachine):
    """Whatever comes in whatever order, the user's partitions are accounted for and requests make sense."""

    @initialize(
        names=st.sampled_from([("range",), ("cooperative-sticky",), ("sticky", "roundrobin")]),
        instance_id=st.sampled_from([None, "a"]),
    )
    def begin(self, names: tuple[str, ...], instance_id: str | None) -> None:
        self.who = member(*names, instance_id=instance_id)
        self.now_ms = 0
        self.has: set[Partition] = set()
        self.joins: list[SendJoin] = []
        self.syncs: list[SendSync] = []
        self.beats: list[SendHeartbeat] = []
        self.fetches: list[FetchMetadata] = []
        self.finds = 0
        self.is_subscribed = False

    def step(self, event: Event) -> None:
        was_member = self.who.generation.is_member
        for effect in self.who.step(self.now_ms, event):
            assert not isinstance(effect, USER_EFFECTS) or isinstance(event, UserPoll | RevokeAll)
            match effect:
                case RevokePartitions(partitions):
                    assert was_member
                    assert set(partitions) <= self.has
                    self.has -= set(partitions)
                case LosePartitions(partitions):
                    assert not was_member
                    assert set(partitions) == self.has
                    self.has = set()
                case AssignPartitions(partitions, added):
                    assert not set(added) & self.has
                    self.has |= set(added)
                    assert set(partitions) == self.has
                case SendJoin():
                    assert self.who.state is MemberState.JOINING
                    assert was_member or not self.has
                    self.joins.append(effect)
                case SendSync():
                    self.syncs.append(effect)
                case SendHeartbeat():
                    assert effect.generation.is_member
                    assert self.who.state not in (MemberState.UNJOINED, MemberState.JOINING)
                    self.beats.append(effect)
                case FetchMetadata():
                    self.fetches.append(effect)
                case FindCoordinator():
                    assert self.finds == 0
                    self.finds = 1
                case SendLeave():
                    assert self.who.config.instance_id is None

    @rule()
    def poll(self) -> None:
        self.step(UserPoll())

    @rule(exponential_backoff_ms=st.sampled_from([0, 100, 3_000, 45_000, 300_000]))
    def wait(self, exponential_backoff_ms: int) -> None:
        self.now_ms += exponential_backoff_ms
        self.step(HeartbeatTick())

    @rule(topics=st.sampled_from([("orders",), ("payments",), ("orders", "payments"), ()]))
    def subscribe(self, topics: tuple[str, ...]) -> None:
        self.is_subscribed = True
        self.step(SubscriptionChanged(topics))

    @rule()
    def unsubscribe(self) -> None:
        self.step(RevokeAll(commit=True))
        assert not self.has
        self.step(Unsubscribed())
        self.is_subscribed = False

    @precondition(lambda self: self.finds)
    @rule(node_id=st.integers(1, 3), code=CODES)
    def answer_find(self, node_id: int, code: ErrorCode) -> None:
        self.finds = 0
        none = code == ErrorCode.none
        self.step(CoordinatorFound(node_id) if none else CoordinatorNotFound(code))

    @precondition(lambda self: self.joins)
    @rule(code=CODES, generation_id=st.integers(0, 5), leads=st.booleans(), skip=st.booleans(), data=st.data())
    def answer_join(self, code: ErrorCode, generation_id: int, leads: bool, skip: bool, data: st.DataObject) -> None:
        join = data.draw(st.sampled_from(self.joins[-2:]))
        protocol, metadata = join.protocols[0]
        members = (JoinGroupMember("m1", None, metadata),)
        leader_id = "m1" if leads else "m2"
        self.step(JoinResponse(join.attempt, code, generation_id, "m1", leader_id, protocol, members, skip))

    @precondition(lambda self: self.fetches)
    @rule(count=st.integers(0, 3), fails=st.booleans())
    def answer_fetch(self, count: int, fails: bool) -> None:
        counts = None if fails else {"orders": count, "payments": 1}
        self.step(MetadataFetchCompleted(self.fetches[-1].attempt, counts))

    @rule(count=st.integers(0, 3))
    def change_metadata(self, count: int) -> None:
        self.step(MetadataChanged({"orders": count, "payments": 1}))

    @precondition(lambda self: self.syncs)
    @rule(
        code=CODES,
        partitions=st.lists(
            st.sampled_from([("orders", 0), ("orders", 1), ("orders", 2), ("payments", 0)]), unique=True
        ),
        data=st.data(),
    )
    def answer_sync(self, code: ErrorCode, partitions: list[Partition], data: st.DataObject) -> None:
        sync = data.draw(st.sampled_from(self.syncs[-2:]))
        self.step(SyncResponse(sync.attempt, code, assignment(*partitions)))

    @precondition(lambda self: self.beats)
    @rule(code=CODES, data=st.data())
    def answer_beat(self, code: ErrorCode, data: st.DataObject) -> None:
        self.step(HeartbeatResponse(data.draw(st.sampled_from(self.beats[-2:])).heartbeat_id, code))

    @rule(code=CODES)
    def commit(self, code: ErrorCode) -> None:
        if code != ErrorCode.none:
            self.step(CommitFailed(self.who.generation, code))

    @invariant()
    def time_never_stands_still(self) -> None:
        """What is said to be due can be done: no loop spins on a time that has passed."""
        if (due_ms := self.who.next_heartbeat_at_ms()) is not None and due_ms <= self.now_ms:
            self.step(HeartbeatTick())
            again_ms = self.who.next_heartbeat_at_ms()
            assert again_ms is None or again_ms > self.now_ms

    @rule(partitions=st.sampled_from([(("orders", 0),), (("orders", 0), ("orders", 1)), (("orders", 1),), ()]))
    def settle(self, partitions: tuple[Partition, ...]) -> None:
        """A member whose requests succeed joins the group from any state."""
        self.step(SubscriptionChanged(("orders",)))
        if self.who.state is MemberState.FENCED:
            return
        for _ in range(12):
            self.now_ms += 2_000
            self.step(UserPoll())
            if self.who.state is MemberState.STABLE and self.who.next_poll_at_ms() is None:
                return
            if self.finds:
                self.finds = 0
                self.step(CoordinatorFound(1))
            if self.joins:
                protocol = self.joins[-1].protocols[0][0]
                self.step(JoinResponse(self.joins[-1].attempt, ErrorCode.none, 9, "m1", "m2", protocol))
            if self.fetches:
                self.step(MetadataFetchCompleted(self.fetches[-1].attempt, {"orders": 2}))
            if self.syncs:
                self.step(SyncResponse(self.syncs[-1].attempt, assignment=assignment(*partitions)))
        raise AssertionError(f"still {self.who.state} with {self.has}")


TestAnyLife = AnyLife.TestCase
TestAnyLife.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
