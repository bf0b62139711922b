"""A model test of classic groups: members, time, crashes and log failures in any order.

The invariants are what members rely on: their assignments, and responses to their requests.
"""

from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moldau.coordinator.result import RequestId
from moldau.errors import FencedInstanceIdError, MemberIdRequiredError, MoldauError, UnknownMemberIdError
from moldau.groups.records import GroupMetadataRecord
from moldau.groups.requests import (
    EMPTY_RESPONSE,
    UNKNOWN_MEMBER_ID,
    GroupState,
    JoinResponse,
    LeavingMember,
    Protocol,
    SyncResponse,
)
from moldau.settings.broker import BrokerSettings
from support.classic_group import GroupHarness, named_protocols

A_DAY_MS = 24 * 3_600_000

PROTOCOLS = [
    named_protocols("range"),
    named_protocols("range", metadata=b"more"),
    named_protocols("range", "sticky"),
    named_protocols("sticky", "range"),
    named_protocols("sticky"),
]

instances = st.sampled_from([None, None, "one", "two"])
protocols = st.sampled_from(PROTOCOLS)
session_ms = st.sampled_from([6_000, 10_000, 45_000])
rebalance_ms = st.sampled_from([1_000, 10_000, 60_000])
anybody = st.integers(0, 7)
"""One of the latest clients, alive or not: a replaced client does not know that it was replaced."""


class Client:
    """The state of a client process; it may be slow, restarted or replaced."""

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
        """The identity that the leader sees: that of a static member does not depend on its member id."""
        return self.instance or self.name


class GroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.harness: GroupHarness
        self.asked: dict[RequestId, Client] = {}
        """The client of each request."""
        self.seen: set[RequestId] = set()
        self.lost_requests: set[RequestId] = set()
        """Requests lost in a crash."""
        self.identities: dict[str, str] = {}
        """By member id."""
        self.told: dict[int, tuple[str, str]] = {}
        """Protocol and leader of each generation started by this coordinator."""
        self.parts: dict[int, dict[str, bytes]] = {}
        """The assignment of each member by generation, which never changes."""
        self.fenced: set[str] = set()
        """Member ids replaced by another client with the same instance id."""
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
    def begin(self, size_max: int, delay_ms: int, first: list[tuple[str | None, tuple[Protocol, ...]]]) -> None:
        self.harness = GroupHarness(BrokerSettings(group_max_size=size_max, group_initial_rebalance_delay_ms=delay_ms))
        for instance, protocols in first:
            self.join_new_client(instance, protocols=protocols)

    # Actions of clients

    @rule(
        instance=instances,
        protocols=protocols,
        session_ms=session_ms,
        rebalance_ms=rebalance_ms,
        requires_known_member_id=st.booleans(),
        supports_skipping_assignment=st.booleans(),
    )
    def join_new_client(self, instance: str | None, **how: Any) -> None:
        client = Client(f"member-{len(self.identities)}", instance)
        self.clients.append(client)
        self.living.append(client)
        self.join(client, **how)

    @rule(who=anybody, protocols=protocols, session_ms=session_ms, rebalance_ms=rebalance_ms)
    def rejoin(self, who: int, **how: Any) -> None:
        self.join(self.client(who), **how)

    @rule(rounds=st.integers(1, 4))
    def run_clients(self, rounds: int) -> None:
        """Lets all live clients join, sync and send heartbeats for some rounds."""
        for _ in range(rounds):
            for client in list(self.living):
                if client.waits_for is not None:
                    continue
                if client.generation < 0:
                    self.join(client, protocols=client.protocols)
                elif not client.has_part:
                    self.send_sync(client)
                else:
                    self.send_heartbeat(client)
            if self.harness.metadata.state is GroupState.PREPARING_REBALANCE and rounds > 2:
                self.advance_to_next_deadline()

    @rule(who=anybody)
    def sync(self, who: int) -> None:
        self.send_sync(self.client(who))

    @rule(who=anybody)
    def heartbeat(self, who: int) -> None:
        self.send_heartbeat(self.client(who))

    @rule(who=anybody)
    def commit(self, who: int) -> None:
        client = self.client(who)
        try:
            self.harness.commit(client.member_id, generation=client.generation, instance=client.instance)
        except MoldauError:
            return
        if not self.harness.metadata.is_empty:
            self.is_a_member(client)

    @rule(who=anybody)
    def leave(self, who: int) -> None:
        client = self.client(who)
        self.lose(client)
        self.expect(client, self.harness.leave(LeavingMember(client.member_id, client.instance)))

    @rule(who=anybody)
    def stop_client(self, who: int) -> None:
        self.lose(self.client(who))

    @rule(who=anybody)
    def restart(self, who: int) -> None:
        """Restarts a client without its state; only a static member keeps its identity. The old one stays alive."""
        gone = self.client(who)
        self.lose(gone)
        self.join_new_client(gone.instance, protocols=gone.protocols)

    @rule(instance=st.sampled_from(["one", "two", "strange"]))
    def remove_static_member(self, instance: str) -> None:
        self.harness.leave(LeavingMember(UNKNOWN_MEMBER_ID, instance))
        self.check_responses()

    # Time, log failures and crashes

    @rule(delay_ms=st.sampled_from([1, 500, 3_000, 3_000, 6_000, 70_000]))
    def wait(self, delay_ms: int) -> None:
        self.harness.wait(delay_ms)
        self.check_responses()

    @rule()
    def advance_to_next_deadline(self) -> None:
        due_ms = self.harness.group.next_deadline_ms
        if due_ms is not None:
            self.harness.wait(max(0, due_ms - self.harness.now_ms))
            self.check_responses()

    @rule(rounds=st.integers(1, 3))
    def fail_log(self, rounds: int) -> None:
        self.harness.log_fails = True
        self.run_clients(rounds)
        self.harness.log_fails = False

    @rule()
    def crash(self) -> None:
        self.lost_requests |= set(self.asked) - self.seen
        for client in self.living:
            client.waits_for = None
        self.told.clear()
        self.fenced.clear()
        self.harness.crash()
        self.check_responses()

    # Helpers

    def client(self, who: int) -> Client:
        return self.clients[-1 - who % len(self.clients)]

    def lose(self, client: Client) -> None:
        if client in self.living:
            self.living.remove(client)

    def join(self, client: Client, **how: Any) -> None:
        client.protocols = how["protocols"]
        new_member_id = f"{client.name}-{len(self.identities)}"
        self.identities[new_member_id] = client.identity
        self.expect(
            client, self.harness.join(client.member_id, instance=client.instance, new_member_id=new_member_id, **how)
        )

    def send_sync(self, client: Client) -> None:
        assignments = {}
        if client.leads:
            self.assigned += 1
            assignments = {
                member_id: f"{self.assigned} for {self.identities[member_id]}".encode()
                for member_id in self.harness.members
            }
        request_id = self.harness.sync(
            client.member_id, assignments, generation=client.generation, instance=client.instance
        )
        self.expect(client, request_id)

    def send_heartbeat(self, client: Client) -> None:
        request_id = self.harness.heartbeat(client.member_id, generation=client.generation, instance=client.instance)
        holder = client.instance and self.harness.group._members.static_members.get(client.instance)
        if holder is not None and holder != client.member_id:
            assert self.harness.error_type(request_id) is FencedInstanceIdError
        if self.harness.response(request_id) is EMPTY_RESPONSE:
            self.is_a_member(client)
        self.expect(client, request_id)

    # Responses

    def expect(self, client: Client, request_id: RequestId) -> None:
        self.asked[request_id] = client
        client.waits_for = request_id
        self.check_responses()

    def check_responses(self) -> None:
        """Checks every response since the last call."""
        self.read_log()
        for request_id in [each for each in self.asked if each not in self.seen and each in self.harness.lost]:
            self.seen.add(request_id)
            self.asked[request_id].waits_for = None
        for request_id in [each for each in self.asked if each not in self.seen and each in self.harness.responses]:
            assert request_id not in self.lost_requests, "a crashed coordinator cannot respond"
            self.seen.add(request_id)
            client, response = self.asked[request_id], self.harness.responses[request_id]
            if client.waits_for == request_id:
                client.waits_for = None
            if isinstance(response, JoinResponse):
                self.check_join_response(client, response)
            elif isinstance(response, SyncResponse):
                self.check_sync_response(client, response)
            elif isinstance(response, MoldauError):
                self.check_error(client, response)

    def check_join_response(self, client: Client, reply: JoinResponse) -> None:
        leader = self.identities[reply.leader]
        expected = self.told.setdefault(reply.generation, (reply.protocol_name, leader))
        assert expected == (reply.protocol_name, leader), "all members of a generation get the same protocol and leader"
        client.member_id, client.generation, client.has_part = reply.member_id, reply.generation, False
        client.leads = bool(reply.members) and not reply.skip_assignment
        if reply.members:
            assert reply.leader == reply.member_id
            assert reply.member_id in [each.member_id for each in reply.members]
        if client.instance is not None:
            same = [each for each, identity in self.identities.items() if identity == client.instance]
            self.fenced |= set(same) - {reply.member_id}
            self.fenced.discard(reply.member_id)

    def check_sync_response(self, client: Client, reply: SyncResponse) -> None:
        assert client.member_id not in self.fenced or client.member_id not in self.harness.members
        parts = self.parts.setdefault(self.generation_written, {})
        assert parts.setdefault(client.identity, reply.assignment) == reply.assignment
        assert len({part.split()[0] for part in parts.values() if part}) <= 1, "one leader's word a generation"
        if reply.assignment:
            assert reply.assignment.endswith(f"for {client.identity}".encode())

        client.has_part = True

    def check_error(self, client: Client, error: MoldauError) -> None:
        client.generation = -1
        if isinstance(error, MemberIdRequiredError):
            client.member_id = error.member_id
        elif isinstance(error, UnknownMemberIdError):
            client.member_id = UNKNOWN_MEMBER_ID
        elif isinstance(error, FencedInstanceIdError):
            self.lose(client)

    def is_a_member(self, client: Client) -> None:
        assert client.member_id in self.harness.members
        assert client.generation == self.harness.metadata.generation
        assert client.member_id not in self.fenced

    def read_log(self) -> None:
        for record in self.harness.log[self.records_seen :]:
            assert isinstance(record, GroupMetadataRecord)
            assert record.metadata is not None
            assert record.metadata.generation >= self.generation_written, "a committed generation is not reverted"
            self.generation_written = record.metadata.generation
            assert len({each.instance_id for each in record.metadata.members if each.instance_id}) == len(
                [each for each in record.metadata.members if each.instance_id]
            )
        self.records_seen = len(self.harness.log)

    # Invariants

    @invariant()
    def members_are_consistent(self) -> None:
        group = self.harness.group
        members, state = group.metadata.members.by_id, group.metadata.state
        assert (state is GroupState.EMPTY) == (not members) or state is GroupState.PREPARING_REBALANCE
        assert group.metadata.leader in members if members else group.metadata.leader is None
        assert not group._join.parked or state is GroupState.PREPARING_REBALANCE
        assert not group._sync.parked or state is GroupState.COMPLETING_REBALANCE
        assert set(group._join.parked) | set(group._sync.parked) | set(group._sync.pending_members) <= set(members)
        assert not set(group._join.pending_members) & set(members)
        assert (group._join.deadline_ms is not None) == (state is GroupState.PREPARING_REBALANCE)
        assert (group._sync.deadline_ms is not None) == bool(group._sync.pending_members)
        if state is GroupState.COMPLETING_REBALANCE:
            assert group._sync.deadline_ms is not None
        due_ms = group.next_deadline_ms
        if group._join.parked or group._sync.parked:
            assert due_ms is not None, "a pending request has a deadline"

    @invariant()
    def every_member_has_a_deadline(self) -> None:
        """Every member has a pending request or a heartbeat deadline."""
        group = self.harness.group
        watched = group._session_deadlines._deadlines
        for member_id, member in group.metadata.members.by_id.items():
            is_waiting = member_id in group._join.parked or member_id in group._sync.parked
            assert member_id in watched or (is_waiting and not member.is_new)
        assert all(member_id in watched for member_id in group._join.pending_members)

    @invariant()
    def size_is_limited(self) -> None:
        group = self.harness.group
        assert len(group._join.parked) <= self.harness.config.group_max_size
        if group.metadata.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            dynamic = [each for each in group.metadata.members.by_id.values() if not each.is_static]
            assert len(dynamic) <= self.harness.config.group_max_size

    @invariant()
    def matches_the_log_when_stable(self) -> None:
        group = self.harness.group
        if group.metadata.state is GroupState.STABLE:
            record = self.harness.log[-1]
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
        """Without further requests, every pending request gets a response and the group becomes empty."""
        if not hasattr(self, "harness"):
            return
        self.harness.wait(A_DAY_MS)
        self.check_responses()
        assert set(self.asked) - self.seen == self.lost_requests - self.seen
        assert (self.harness.metadata.state, self.harness.group.next_deadline_ms) == (GroupState.EMPTY, None)
        self.harness.crash()
        self.harness.wait(A_DAY_MS)
        assert self.harness.metadata.state is GroupState.EMPTY
        for record in self.harness.log[-1:]:
            assert isinstance(record, GroupMetadataRecord)
            assert record.metadata is not None
            assert not record.metadata.members, "also in the log"


TestGroupModel = GroupModel.TestCase
TestGroupModel.settings = hypothesis_settings(max_examples=150, stateful_step_count=50, deadline=None)
