"""A classic group under everything that members, time, crashes and a failing log can do to it in any order.

What must hold is said in the words of those who rely on it: members that were given their parts, and whoever waits
for an answer.
"""

from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moldau.errors import FencedInstanceIdError, MemberIdRequiredError, MoldauError, UnknownMemberIdError
from moldau.groups.records import GroupMetadataRecord
from moldau.groups.requests import (
    EMPTY_RESPONSE,
    UNKNOWN_MEMBER_ID,
    GroupCoordinatorConfig,
    GroupState,
    JoinResponse,
    LeavingMember,
    Protocol,
    RequestId,
    SyncResponse,
)
from support.classic_group import Stage, speaking

A_DAY_MS = 24 * 3_600_000

PROTOCOLS = [
    speaking("range"),
    speaking("range", metadata=b"more"),
    speaking("range", "sticky"),
    speaking("sticky", "range"),
    speaking("sticky"),
]

instances = st.sampled_from([None, None, "one", "two"])
protocols = st.sampled_from(PROTOCOLS)
session_ms = st.sampled_from([6_000, 10_000, 45_000])
rebalance_ms = st.sampled_from([1_000, 10_000, 60_000])
anybody = st.integers(0, 7)
"""One of the last few clients, living or not: those who are long replaced do not know it."""


class Client:
    """What one process that wants to be a member knows; it may be slow, restarted or long replaced."""

    def __init__(self, name: str, instance: str | None) -> None:
        self.name = name
        self.instance = instance
        self.member_id = UNKNOWN_MEMBER_ID
        self.generation = -1
        self.leads = False
        self.protocols = PROTOCOLS[0]
        self.waits_for: RequestId | None = None
        self.has_part = False

    @property
    def identity(self) -> str:
        """Who it is for the leader: a static member is the same whatever its member id."""
        return self.instance or self.name


class GroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage: Stage
        self.asked: dict[RequestId, Client] = {}
        """Who waits, or has waited, for each answer."""
        self.seen: set[RequestId] = set()
        self.given_up: set[RequestId] = set()
        """Requests that a crash has taken with it."""
        self.identities: dict[str, str] = {}
        """By member id."""
        self.told: dict[int, tuple[str, str]] = {}
        """Protocol and leader of each generation that this incarnation of the coordinator has begun."""
        self.parts: dict[int, dict[str, bytes]] = {}
        """What each member was given, by generation: that is for ever."""
        self.fenced: set[str] = set()
        """Member ids that others with the same instance id have been told to replace."""
        self.assigned = 0
        self.records_seen = 0
        self.generation_written = 0
        self.clients: list[Client] = []
        self.living: list[Client] = []

    @initialize(
        size_max=st.sampled_from([1, 2, 3, 100, 100]),
        delay_ms=st.sampled_from([0, 3_000]),
        first=st.lists(st.tuples(instances, protocols), min_size=1, max_size=3),
    )
    def begin(
        self, size_max: int, delay_ms: int, first: list[tuple[str | None, tuple[Protocol, ...]]]
    ) -> None:
        self.stage = Stage(GroupCoordinatorConfig(size_max=size_max, initial_rebalance_delay_ms=delay_ms))
        for instance, protocols in first:
            self.join_anew(instance, protocols=protocols)

    # What clients do

    @rule(
        instance=instances,
        protocols=protocols,
        session_ms=session_ms,
        rebalance_ms=rebalance_ms,
        asks_for_id=st.booleans(),
        skips_assignment=st.booleans(),
    )
    def join_anew(self, instance: str | None, **how: Any) -> None:
        client = Client(f"member-{len(self.identities)}", instance)
        self.clients.append(client)
        self.living.append(client)
        self.join(client, **how)

    @rule(who=anybody, protocols=protocols, session_ms=session_ms, rebalance_ms=rebalance_ms)
    def join_again(self, who: int, **how: Any) -> None:
        self.join(self.client(who), **how)

    @rule(rounds=st.integers(1, 4))
    def all_go_on(self, rounds: int) -> None:
        """Those who live do what clients do, for a while: they join, sync and send heartbeats."""
        for _ in range(rounds):
            for client in list(self.living):
                if client.waits_for is not None:
                    continue
                if client.generation < 0:
                    self.join(client, protocols=client.protocols)
                elif not client.has_part:
                    self.ask_for_part(client)
                else:
                    self.send_heartbeat(client)
            if self.stage.metadata.state is GroupState.PREPARING_REBALANCE and rounds > 2:
                self.wait_for_what_is_next()

    @rule(who=anybody)
    def sync(self, who: int) -> None:
        self.ask_for_part(self.client(who))

    @rule(who=anybody)
    def heartbeat(self, who: int) -> None:
        self.send_heartbeat(self.client(who))

    @rule(who=anybody)
    def commit(self, who: int) -> None:
        client = self.client(who)
        try:
            self.stage.commit(client.member_id, generation=client.generation, instance=client.instance)
        except MoldauError:
            return
        if not self.stage.metadata.is_empty:
            self.is_a_member(client)

    @rule(who=anybody)
    def leave(self, who: int) -> None:
        client = self.client(who)
        self.lose(client)
        self.expect(client, self.stage.leave(LeavingMember(client.member_id, client.instance)))

    @rule(who=anybody)
    def fall_silent(self, who: int) -> None:
        self.lose(self.client(who))

    @rule(who=anybody)
    def restart(self, who: int) -> None:
        """It comes back without its memory, as itself only if it is a static member. The old one lingers on."""
        gone = self.client(who)
        self.lose(gone)
        self.join_anew(gone.instance, protocols=gone.protocols)

    @rule(instance=st.sampled_from(["one", "two", "strange"]))
    def remove_static_member(self, instance: str) -> None:
        self.stage.leave(LeavingMember(UNKNOWN_MEMBER_ID, instance))
        self.hear()

    # What the world does

    @rule(delay_ms=st.sampled_from([1, 500, 3_000, 3_000, 6_000, 70_000]))
    def wait(self, delay_ms: int) -> None:
        self.stage.wait(delay_ms)
        self.hear()

    @rule()
    def wait_for_what_is_next(self) -> None:
        due_ms = self.stage.group.next_deadline_ms
        if due_ms is not None:
            self.stage.wait(max(0, due_ms - self.stage.now_ms))
            self.hear()

    @rule(rounds=st.integers(1, 3))
    def log_fails_for_a_while(self, rounds: int) -> None:
        self.stage.log_fails = True
        self.all_go_on(rounds)
        self.stage.log_fails = False

    @rule()
    def crash(self) -> None:
        self.given_up |= set(self.asked) - self.seen
        for client in self.living:
            client.waits_for = None
        self.told.clear()
        self.fenced.clear()
        self.stage.crash()
        self.hear()

    # How it is done

    def client(self, who: int) -> Client:
        return self.clients[-1 - who % len(self.clients)]

    def lose(self, client: Client) -> None:
        if client in self.living:
            self.living.remove(client)

    def join(self, client: Client, **how: Any) -> None:
        client.protocols = how["protocols"]
        fresh_id = f"{client.name}-{len(self.identities)}"
        self.identities[fresh_id] = client.identity
        self.expect(
            client, self.stage.join(client.member_id, instance=client.instance, fresh_id=fresh_id, **how)
        )

    def ask_for_part(self, client: Client) -> None:
        assignments = {}
        if client.leads:
            self.assigned += 1
            assignments = {
                member_id: f"{self.assigned} for {self.identities[member_id]}".encode()
                for member_id in self.stage.members
            }
        request_id = self.stage.sync(
            client.member_id, assignments, generation=client.generation, instance=client.instance
        )
        self.expect(client, request_id)

    def send_heartbeat(self, client: Client) -> None:
        request_id = self.stage.heartbeat(
            client.member_id, generation=client.generation, instance=client.instance
        )
        holder = client.instance and self.stage.group._members.static_member_id(client.instance)
        if holder is not None and holder != client.member_id:
            assert self.stage.refused(request_id) is FencedInstanceIdError
        if self.stage.answer(request_id) is EMPTY_RESPONSE:
            self.is_a_member(client)
        self.expect(client, request_id)

    # What is seen of it

    def expect(self, client: Client, request_id: RequestId) -> None:
        self.asked[request_id] = client
        client.waits_for = request_id
        self.hear()

    def hear(self) -> None:
        """Looks at every answer that has come since the last time."""
        self.read_log()
        for request_id in [each for each in self.asked if each not in self.seen and each in self.stage.lost]:
            self.seen.add(request_id)
            self.asked[request_id].waits_for = None
        for request_id in [
            each for each in self.asked if each not in self.seen and each in self.stage.answers
        ]:
            assert request_id not in self.given_up, "nobody answers for a coordinator that is gone"
            self.seen.add(request_id)
            client, answer = self.asked[request_id], self.stage.answers[request_id]
            if client.waits_for == request_id:
                client.waits_for = None
            if isinstance(answer, JoinResponse):
                self.hear_join(client, answer)
            elif isinstance(answer, SyncResponse):
                self.hear_sync(client, answer)
            elif isinstance(answer, MoldauError):
                self.hear_error(client, answer)

    def hear_join(self, client: Client, reply: JoinResponse) -> None:
        leader = self.identities[reply.leader]
        expected = self.told.setdefault(reply.generation, (reply.protocol_name, leader))
        assert expected == (reply.protocol_name, leader), "one generation, one story"
        client.member_id, client.generation, client.has_part = reply.member_id, reply.generation, False
        client.leads = bool(reply.members) and not reply.skip_assignment
        if reply.members:
            assert reply.leader == reply.member_id
            assert reply.member_id in [each.member_id for each in reply.members]
        if client.instance is not None:
            same = [each for each, identity in self.identities.items() if identity == client.instance]
            self.fenced |= set(same) - {reply.member_id}
            self.fenced.discard(reply.member_id)

    def hear_sync(self, client: Client, reply: SyncResponse) -> None:
        assert client.member_id not in self.fenced or client.member_id not in self.stage.members
        parts = self.parts.setdefault(self.generation_written, {})
        assert parts.setdefault(client.identity, reply.assignment) == reply.assignment
        assert len({part.split()[0] for part in parts.values() if part}) <= 1, (
            "one leader's word a generation"
        )
        if reply.assignment:
            assert reply.assignment.endswith(f"for {client.identity}".encode())

        client.has_part = True

    def hear_error(self, client: Client, error: MoldauError) -> None:
        client.generation = -1
        if isinstance(error, MemberIdRequiredError):
            client.member_id = error.member_id
        elif isinstance(error, UnknownMemberIdError):
            client.member_id = UNKNOWN_MEMBER_ID
        elif isinstance(error, FencedInstanceIdError):
            self.lose(client)

    def is_a_member(self, client: Client) -> None:
        assert client.member_id in self.stage.members
        assert client.generation == self.stage.metadata.generation
        assert client.member_id not in self.fenced

    def read_log(self) -> None:
        for record in self.stage.log[self.records_seen :]:
            assert isinstance(record, GroupMetadataRecord)
            assert record.metadata is not None
            assert record.metadata.generation >= self.generation_written, "what was synced is not taken back"
            self.generation_written = record.metadata.generation
            assert len({each.instance_id for each in record.metadata.members if each.instance_id}) == len(
                [each for each in record.metadata.members if each.instance_id]
            )
        self.records_seen = len(self.stage.log)

    # What holds at any time

    @invariant()
    def is_in_order(self) -> None:
        group = self.stage.group
        members, state = group.metadata.members.by_id, group.metadata.state
        assert (state is GroupState.EMPTY) == (not members) or state is GroupState.PREPARING_REBALANCE
        assert group.metadata.leader in members if members else group.metadata.leader is None
        assert not group._join.parked or state is GroupState.PREPARING_REBALANCE
        assert not group._sync.parked or state is GroupState.COMPLETING_REBALANCE
        assert set(group._join.parked) | set(group._sync.parked) | set(group._sync.pending_members) <= set(
            members
        )
        assert not set(group._join.pending_members) & set(members)
        assert (group._join.deadline_ms is not None) == (state is GroupState.PREPARING_REBALANCE)
        assert (group._sync.deadline_ms is not None) == bool(group._sync.pending_members)
        if state is GroupState.COMPLETING_REBALANCE:
            assert group._sync.deadline_ms is not None
        due_ms = group.next_deadline_ms
        if group._join.parked or group._sync.parked:
            assert due_ms is not None, "who waits is not forgotten"

    @invariant()
    def is_watched(self) -> None:
        """Every member either waits for an answer or has to show signs of life."""
        group = self.stage.group
        watched = group._session_deadlines._deadlines
        for member_id, member in group.metadata.members.by_id.items():
            is_waiting = member_id in group._join.parked or member_id in group._sync.parked
            assert member_id in watched or (is_waiting and not member.is_new)
        assert all(member_id in watched for member_id in group._join.pending_members)

    @invariant()
    def is_not_too_big(self) -> None:
        group = self.stage.group
        assert len(group._join.parked) <= self.stage.config.size_max
        if group.metadata.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            dynamic = [each for each in group.metadata.members.by_id.values() if not each.is_static]
            assert len(dynamic) <= self.stage.config.size_max

    @invariant()
    def is_what_the_log_says_when_stable(self) -> None:
        group = self.stage.group
        if group.metadata.state is GroupState.STABLE:
            record = self.stage.log[-1]
            assert isinstance(record, GroupMetadataRecord)
            assert record.metadata is not None
            assert (record.metadata.generation, record.metadata.leader) == (
                group.metadata.generation,
                group.metadata.leader,
            )
            assert [(each.member_id, each.assignment) for each in record.metadata.members] == [
                (each.member_id, each.assignment) for each in group.metadata.members.by_id.values()
            ]

    def teardown(self) -> None:
        """When time goes on and nobody does anything, everybody is answered and the group is empty in the end."""
        if not hasattr(self, "stage"):
            return
        self.stage.wait(A_DAY_MS)
        self.hear()
        assert set(self.asked) - self.seen == self.given_up - self.seen
        assert (self.stage.metadata.state, self.stage.group.next_deadline_ms) == (
            GroupState.EMPTY,
            None,
        )
        self.stage.crash()
        self.stage.wait(A_DAY_MS)
        assert self.stage.metadata.state is GroupState.EMPTY
        for record in self.stage.log[-1:]:
            assert isinstance(record, GroupMetadataRecord)
            assert record.metadata is not None
            assert not record.metadata.members, "and the log says so"


TestGroupModel = GroupModel.TestCase
TestGroupModel.settings = hypothesis_settings(max_examples=150, stateful_step_count=50, deadline=None)
