"""A fetch session as the follower sees it (KIP-227): after a full fetch, only what changed is asked for. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

NO_SESSION = 0
BEGIN_EPOCH = 0
_EPOCH_LIMIT = 2**31


class PartitionKey(NamedTuple):
    topic_id: UUID
    partition: int


class Position(NamedTuple):
    """What a follower says of a partition when it fetches."""

    offset: int
    """Everything below it is durable here: the leader counts on that."""
    last_epoch: int
    """The leader epoch of the record before `offset`, by which the leader finds where two logs part."""
    leader_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """One request of the session."""

    session_id: int
    session_epoch: int
    named: Mapping[PartitionKey, Position]
    """With a full fetch all partitions; else those that are new to the leader or have another position."""
    forgotten: tuple[PartitionKey, ...]

    @property
    def is_full(self) -> bool:
        return self.session_epoch == BEGIN_EPOCH


class FetchSession:
    """A request and its answer at a time. After any failure the next fetch is a full one, in a new session.

    Nothing here looks at every partition but a full fetch: there may be thousands, of which few have news.
    """

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = BEGIN_EPOCH
        self._wanted: dict[PartitionKey, Position] = {}
        """Those whose position changed last are at the end: so none starves where the leader keeps no session."""
        self._told: dict[PartitionKey, Position] = {}
        """What the last fetch said, or those before it in the session."""
        self._changed: dict[PartitionKey, None] = {}
        """Where the two above may differ."""

    def __len__(self) -> int:
        return len(self._wanted)

    @property
    def is_begun(self) -> bool:
        """Whether the leader has a session that the last fetch went on with."""
        return self._epoch != BEGIN_EPOCH

    def asked(self, key: PartitionKey) -> Position | None:
        """Where the last fetch asked for a partition, whatever is wanted by now; None where it did not."""
        return self._told.get(key)

    def want(self, key: PartitionKey, position: Position) -> None:
        if self._wanted.get(key) != position:
            self._wanted.pop(key, None)
            self._wanted[key] = position
            self._changed[key] = None

    def forget(self, key: PartitionKey) -> None:
        if self._wanted.pop(key, None) is not None:
            self._changed[key] = None

    def plan(self) -> FetchPlan:
        """The next fetch."""
        changed, self._changed = self._changed, {}
        if self._epoch == BEGIN_EPOCH:
            self._told = dict(self._wanted)
            # The id, if there is one, lets the leader drop the session that this one replaces.
            return FetchPlan(self._id, BEGIN_EPOCH, self._told, ())
        named, forgotten = {}, []
        for key in changed:
            position = self._wanted.get(key)
            if position is not None and position != self._told.get(key):
                named[key] = self._told[key] = position
            elif position is None and self._told.pop(key, None) is not None:
                forgotten.append(key)
        return FetchPlan(self._id, self._epoch, named, tuple(forgotten))

    def answered(self, session_id: int) -> None:
        """The fetch was answered without an error of the session itself."""
        if session_id == NO_SESSION:
            # The leader has no room for sessions, or has ended this one.
            self._id, self._epoch = NO_SESSION, BEGIN_EPOCH
        elif self._epoch == BEGIN_EPOCH:
            self._id, self._epoch = session_id, 1
        elif session_id == self._id:
            self._epoch = 1 if self._epoch + 1 >= _EPOCH_LIMIT else self._epoch + 1
        else:
            self.begin_anew()

    def begin_anew(self) -> None:
        """The leader may know something else than what is known here: the next fetch says everything again."""
        self._epoch = BEGIN_EPOCH
