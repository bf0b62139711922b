"""A fetch session as the follower sees it (KIP-227): after a full fetch, only what changed is asked for. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

INVALID_SESSION_ID = 0
INITIAL_EPOCH = 0
_EPOCH_END = 2**31


class PartitionKey(NamedTuple):
    topic_id: UUID
    partition: int


class FollowerFetchPosition(NamedTuple):
    """What a follower says of a partition when it fetches."""

    offset: int
    """Everything below it is durable here: the leader counts on that."""
    last_epoch: int
    """The leader epoch of the record before `offset`, by which the leader finds where two logs part."""
    leader_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class FetchRequestData:
    """One request of the session."""

    session_id: int
    session_epoch: int
    to_send: Mapping[PartitionKey, FollowerFetchPosition]
    """With a full fetch all partitions; else those that are new to the leader or have another position."""
    to_forget: tuple[PartitionKey, ...]

    @property
    def is_full(self) -> bool:
        return self.session_epoch == INITIAL_EPOCH


class FetchSessionHandler:
    """A request and its answer at a time. After any failure the next fetch is a full one, in a new session.

    Nothing here looks at every partition but a full fetch: there may be thousands, of which few have news.
    """

    def __init__(self) -> None:
        self._id = INVALID_SESSION_ID
        self._epoch = INITIAL_EPOCH
        self._positions: dict[PartitionKey, FollowerFetchPosition] = {}
        """Those whose position changed last are at the end: so none starves where the leader keeps no session."""
        self._sent: dict[PartitionKey, FollowerFetchPosition] = {}
        """What the last fetch said, or those before it in the session."""
        self._changed: dict[PartitionKey, None] = {}
        """Where the two above may differ."""

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def is_established(self) -> bool:
        """Whether the leader has a session that the last fetch went on with."""
        return self._epoch != INITIAL_EPOCH

    def requested_position(self, key: PartitionKey) -> FollowerFetchPosition | None:
        """Where the last fetch asked for a partition, whatever is wanted by now; None where it did not."""
        return self._sent.get(key)

    def set_position(self, key: PartitionKey, position: FollowerFetchPosition) -> None:
        if self._positions.get(key) != position:
            self._positions.pop(key, None)
            self._positions[key] = position
            self._changed[key] = None

    def remove(self, key: PartitionKey) -> None:
        if self._positions.pop(key, None) is not None:
            self._changed[key] = None

    def build(self) -> FetchRequestData:
        """The next fetch."""
        changed, self._changed = self._changed, {}
        if self._epoch == INITIAL_EPOCH:
            self._sent = dict(self._positions)
            # The id, if there is one, lets the leader drop the session that this one replaces.
            return FetchRequestData(self._id, INITIAL_EPOCH, self._sent, ())
        to_send, forgotten = {}, []
        for key in changed:
            position = self._positions.get(key)
            if position is not None and position != self._sent.get(key):
                to_send[key] = self._sent[key] = position
            elif position is None and self._sent.pop(key, None) is not None:
                forgotten.append(key)
        return FetchRequestData(self._id, self._epoch, to_send, tuple(forgotten))

    def handle_response(self, session_id: int) -> None:
        """The fetch was answered without an error of the session itself."""
        if session_id == INVALID_SESSION_ID:
            # The leader has no room for sessions, or has ended this one.
            self._id, self._epoch = INVALID_SESSION_ID, INITIAL_EPOCH
        elif self._epoch == INITIAL_EPOCH:
            self._id, self._epoch = session_id, 1
        elif session_id == self._id:
            self._epoch = 1 if self._epoch + 1 >= _EPOCH_END else self._epoch + 1
        else:
            self.reset()

    def reset(self) -> None:
        """The leader may know something else than what is known here: the next fetch says everything again."""
        self._epoch = INITIAL_EPOCH
