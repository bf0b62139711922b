"""Timeouts of the metadata quorum."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    fetch_timeout_ms: int = 1_500
    """How long a voter waits for its leader before it starts an election."""
    election_timeout_ms: int = 500
    """The minimum duration of an undecided election. A random time of up to the same length is added."""
    request_timeout_ms: int = 1_000

    @property
    def first_election_margin_ms(self) -> int:
        """How much longer than the first voter the other voters of a new cluster wait before they start an election.
        Long enough for nodes that are started together, one of them somewhat later than the others."""
        return self.election_timeout_ms * 6

    @property
    def check_quorum_ms(self) -> int:
        """How long a leader keeps its role while no majority fetches from it."""
        return self.fetch_timeout_ms * 3 // 2
