"""One step of a group's machine: the moment it is taken at, and what comes of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from moldau.coordinator import Decision
from moldau.errors import MoldauError
from moldau.groups.records import GroupRecord
from moldau.groups.requests import Answer, GroupDecision, Now, Reply, Ticket


@dataclass(slots=True)
class Step:
    now: Now
    records: list[GroupRecord] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def answer(self, ticket: Ticket, reply: Reply | MoldauError) -> None:
        self.answers.append(Answer(ticket, reply))

    def answer_all(self, tickets: Iterable[Ticket], reply: Reply | MoldauError) -> None:
        self.answers += [Answer(ticket, reply) for ticket in tickets]

    def after_ms(self, delay_ms: int) -> int:
        """The deadline that is so far away."""
        return self.now.monotonic_ms + delay_ms

    def decision(self) -> GroupDecision:
        return Decision(self.records, self.answers)
