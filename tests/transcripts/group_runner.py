"""Runs the commands of a transcript on one classic group, and prints requests, state changes, written records and
responses.

A joins [static NAME] [supporting range,sticky] [session 10s] [rebalance 60s] [at-once]
A syncs [A=orders-0 B=orders-1,orders-2]      A heartbeats      A commits [of 3]      A leaves      A restarts
operator removes NAME      3s pass      coordinator restarts
"""

from moldau.coordinator.result import RequestId
from moldau.errors import MemberIdRequiredError, MoldauError, UnknownMemberIdError
from moldau.groups.records import GroupMetadataRecord
from moldau.groups.requests import (
    UNKNOWN_MEMBER_ID,
    GroupResponse,
    GroupState,
    JoinResponse,
    LeaveResult,
    LeavingMember,
    Protocol,
    SyncResponse,
)
from support.classic_group import GroupHarness, named_protocols


class _Actor:
    """A member in the transcript, with what it knows of itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instance: str | None = None
        self.protocols: tuple[Protocol, ...] = named_protocols("range")
        self.member_id = UNKNOWN_MEMBER_ID
        self.generation = -1


class GroupTranscriptRunner:
    def __init__(self, harness: GroupHarness | None = None) -> None:
        self._harness = harness or GroupHarness()
        self._actors: dict[str, _Actor] = {}
        self._requests: dict[RequestId, tuple[_Actor | None, str]] = {}
        self._emitted: set[RequestId] = set()
        self._ids = 0
        self._written = 0
        self._state = GroupState.EMPTY
        self._began_ms = self._harness.now_ms
        self._lines: list[str] = []

    async def execute(self, command: str) -> list[str]:
        self._lines = []
        who, *words = command.split()
        if words == ["pass"]:
            self._let_pass(_ms(who))
        elif (who, *words) == ("coordinator", "restarts"):
            self._harness.crash()
            self._emitted.update(self._requests)
            self._emit_state()
        elif who == "operator":
            self._emit_request(None, "remove", self._harness.leave(LeavingMember(UNKNOWN_MEMBER_ID, words[-1])))
        else:
            actor = self._actors.setdefault(who, _Actor(who))
            getattr(self, f"_{words[0]}")(actor, *words[1:])
        return self._lines

    # Commands of actors

    def _joins(self, actor: _Actor, *how: str) -> None:
        options = {"session": "10s", "rebalance": "60s"}
        words = iter(how)
        for word in words:
            options[word] = "" if word == "at-once" else next(words)
        actor.instance = options.get("static", actor.instance)
        if "supporting" in options:
            actor.protocols = named_protocols(*options["supporting"].split(","))
        self._ids += actor.member_id == UNKNOWN_MEMBER_ID
        request_id = self._harness.join(
            actor.member_id,
            instance=actor.instance,
            protocols=actor.protocols,
            session_ms=_ms(options["session"]),
            rebalance_ms=_ms(options["rebalance"]),
            requires_known_member_id="at-once" not in options,
            new_member_id=f"{actor.name}{self._ids}",
        )
        self._emit_request(actor, "join", request_id)

    def _syncs(self, actor: _Actor, *parts: str) -> None:
        assigned = dict(part.split("=") for part in parts)
        assignments = {self._actors[name].member_id: partitions.encode() for name, partitions in assigned.items()}
        request_id = self._harness.sync(
            actor.member_id, assignments, generation=actor.generation, instance=actor.instance
        )
        self._emit_request(actor, "sync", request_id)

    def _heartbeats(self, actor: _Actor) -> None:
        request_id = self._harness.heartbeat(actor.member_id, generation=actor.generation, instance=actor.instance)
        self._emit_request(actor, "heartbeat", request_id)

    def _commits(self, actor: _Actor, *of_generation: str) -> None:
        generation = int(of_generation[-1]) if of_generation else actor.generation
        try:
            self._harness.commit(actor.member_id, generation=generation, instance=actor.instance)
        except MoldauError as error:
            self._emit(actor.name, f"commit: {_error_name(error)}")
        else:
            self._emit(actor.name, "commit: ok")

    def _leaves(self, actor: _Actor) -> None:
        request_id = self._harness.leave(LeavingMember(actor.member_id, actor.instance))
        self._emit_request(actor, "leave", request_id)

    def _restarts(self, actor: _Actor) -> None:
        """Restarts the member's process; the old process, if used again, has the name with a prime."""
        shadow = _Actor(f"{actor.name}'")
        shadow.instance, shadow.member_id = actor.instance, actor.member_id
        shadow.generation, shadow.protocols = actor.generation, actor.protocols
        self._actors[shadow.name] = shadow
        for request_id, (asker, what) in self._requests.items():
            if asker is actor and request_id not in self._emitted:
                self._requests[request_id] = (shadow, what)
        actor.member_id, actor.generation = UNKNOWN_MEMBER_ID, -1
        self._emit(actor.name, "has no member id")

    def _let_pass(self, delay_ms: int) -> None:
        until_ms = self._harness.now_ms + delay_ms
        while (due_ms := self._harness.group.next_deadline_ms) is not None and due_ms <= until_ms:
            self._harness.wait(max(0, due_ms - self._harness.now_ms))
            self._emit_changes()
        self._harness.wait(until_ms - self._harness.now_ms)

    # Output

    def _emit_request(self, actor: _Actor | None, what: str, request_id: RequestId) -> None:
        self._requests[request_id] = (actor, what)
        self._emit_changes()
        if request_id not in self._emitted:
            assert actor is not None
            self._emit(actor.name, "is parked")

    def _emit(self, who: str, what: str) -> None:
        self._lines.append(f"{who:<8} {what}")

    def _emit_changes(self) -> None:
        for record in self._harness.log[self._written :]:
            assert isinstance(record, GroupMetadataRecord)
            metadata = record.metadata
            assert metadata is not None
            parts = " ".join(f"{each.member_id}={each.assignment.decode()}" for each in metadata.members)
            self._emit("log", f"generation {metadata.generation}: {parts or 'no members'}")
        self._written = len(self._harness.log)
        self._emit_state()
        for request_id, response in self._harness.responses.items():
            if request_id not in self._emitted:
                self._emitted.add(request_id)
                self._emit_response(*self._requests[request_id], response)

    def _emit_state(self) -> None:
        if self._harness.metadata.state is not self._state:
            self._state = self._harness.metadata.state
            seconds = (self._harness.now_ms - self._began_ms) / 1_000
            self._emit(
                "group", f"{self._state} at {seconds:g} s, with {', '.join(self._harness.members) or 'no members'}"
            )

    def _emit_response(self, actor: _Actor | None, requests: str, response: GroupResponse | MoldauError) -> None:
        who = "operator" if actor is None else actor.name
        if isinstance(response, JoinResponse):
            assert actor is not None
            actor.member_id, actor.generation = response.member_id, response.generation
            self._emit(who, _format_join(response))
        elif isinstance(response, SyncResponse):
            self._emit(who, f"gets {response.assignment.decode() or 'no partitions'}")
        elif isinstance(response, tuple):
            [left] = response
            assert isinstance(left, LeaveResult)
            self._emit(who, f"{requests}: {_error_name(left.error) if left.error else 'ok'}")
        elif isinstance(response, MoldauError):
            self._emit(who, f"{requests}: {_error_name(response)}")
            if actor is not None and isinstance(response, MemberIdRequiredError):
                actor.member_id = response.member_id
            elif actor is not None and isinstance(response, UnknownMemberIdError):
                actor.member_id = UNKNOWN_MEMBER_ID
        else:
            self._emit(who, f"{requests}: ok")


def _format_join(reply: JoinResponse) -> str:
    shown = f"is {reply.member_id} in generation {reply.generation}, {reply.protocol_name}, leader {reply.leader}"
    if reply.members:
        shown += f"; members {', '.join(each.member_id for each in reply.members)}"
    return shown + ("; skip assignment" if reply.skip_assignment else "")


def _error_name(error: MoldauError) -> str:
    kind = type(error).__name__.removesuffix("Error")
    given = f", as {error.member_id}" if isinstance(error, MemberIdRequiredError) else ""
    return kind + given


def _ms(text: str) -> int:
    return int(float(text.removesuffix("s")) * 1_000)
