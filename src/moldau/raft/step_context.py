"""The input and the effects of one step of the Raft state machine. Pure."""

from dataclasses import dataclass, field

from moldau.errors import MoldauError
from moldau.raft.effects import Effect, PersistElection, SendRequest, SendResponse
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.messages import RaftRequest, RaftResponse


@dataclass(slots=True)
class StepContext:
    now_ms: int
    random_fraction: float
    """A random number from 0 to 1. The whole step uses the same number."""
    effects: list[Effect] = field(default_factory=list)

    def deadline_in(self, delay_ms: float) -> int:
        return self.now_ms + max(1, int(delay_ms))

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def send(self, node_id: int, request: RaftRequest) -> None:
        self.effects.append(SendRequest(node_id, request))

    def respond(self, response: RaftResponse | MoldauError) -> None:
        self.effects.append(SendResponse(response))

    def persist(self, election: ElectionState) -> None:
        """Emits a PersistElection effect. If the step already has one, the new one takes its place."""
        for index, effect in enumerate(self.effects):
            if isinstance(effect, PersistElection):
                self.effects[index] = PersistElection(election)
                return
        self.effects.append(PersistElection(election))
