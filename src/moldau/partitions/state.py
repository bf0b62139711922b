"""What the leader of a partition decides: where the high watermark stands and what a caller's epoch is
worth.

Pure. On one node the in-sync set is the node itself, so the high watermark is its own durable offset: no
special case, and nobody reads what a power cut could take back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moldau.errors import FencedLeaderEpochError, NotEnoughReplicasError, UnknownLeaderEpochError

NO_EPOCH = -1


@dataclass(slots=True)
class LeaderState:
    leader_epoch: int
    in_sync: tuple[int, ...]
    """The maximal in-sync set: committed members and those on their way in."""
    replicas: int = 1
    high_watermark: int = 0
    """Never falls within an epoch; everything below it is durable on every member of the in-sync set."""
    durable: dict[int, int] = field(default_factory=dict)
    """How far each replica has said it is durable."""

    def on_durable(self, replica: int, offset: int) -> bool:
        """A replica has everything below `offset` on disk; True where the high watermark moved."""
        self.durable[replica] = offset
        return self._advance()

    def on_in_sync(self, in_sync: Sequence[int]) -> bool:
        self.in_sync = tuple(in_sync)
        return self._advance()

    def _advance(self) -> bool:
        reached = min((self.durable.get(replica, 0) for replica in self.in_sync), default=0)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def check_in_sync(self, wanted: int) -> None:
        """Refuses a write that fewer replicas would have than it needs; never more than there are at all."""
        needed = min(wanted, self.replicas)
        if len(self.in_sync) < needed:
            raise NotEnoughReplicasError(
                f"{len(self.in_sync)} replicas are in sync where {needed} are needed"
            )

    def check_epoch(self, known_epoch: int) -> None:
        """Refuses a caller that knows another leader epoch; NO_EPOCH is a caller that does not check."""
        if known_epoch < 0 or known_epoch == self.leader_epoch:
            return
        if known_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(f"leader epoch {known_epoch} is over: it is {self.leader_epoch} now")
        raise UnknownLeaderEpochError(f"leader epoch {known_epoch} is not known here yet")
