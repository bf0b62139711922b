"""One step of a group's machine: the moment it is taken at, and what comes of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from moldau.coordinator import CoordinatorResult
from moldau.errors import MoldauError
from moldau.groups.records import GroupRecord
from moldau.groups.requests import CompletedRequest, GroupDecision, GroupResponse, Now, RequestId


@dataclass(slots=True)
class DecisionBuilder:
    now: Now
    records: list[GroupRecord] = field(default_factory=list)
    completed: list[CompletedRequest] = field(default_factory=list)

    def complete(self, request_id: RequestId, response: GroupResponse | MoldauError) -> None:
        self.completed.append(CompletedRequest(request_id, response))

    def complete_all(self, request_ids: Iterable[RequestId], response: GroupResponse | MoldauError) -> None:
        self.completed += [CompletedRequest(request_id, response) for request_id in request_ids]

    def deadline_ms(self, delay_ms: int) -> int:
        """The deadline that is so far away."""
        return self.now.monotonic_ms + delay_ms

    def build(self) -> GroupDecision:
        return CoordinatorResult(self.records, self.completed)
