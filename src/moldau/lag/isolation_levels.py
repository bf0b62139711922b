"""The isolation levels of the consumers that fetch from this node.

A coordinator does not know how the consumers of a group read, but the leaders of their partitions do.
"""

from typing import NamedTuple


class ClientIdentity(NamedTuple):
    """What both a Fetch and the description of a group member have. Several consumers can share it."""

    client_id: str
    client_host: str


class ConsumerIsolationLevels:
    def __init__(self) -> None:
        self._by_connection: dict[int, tuple[ClientIdentity, bool]] = {}

    def note(self, connection: int, client: ClientIdentity, *, is_read_committed: bool) -> None:
        """Called when the first Fetch of a connection arrives, or one with another isolation level."""
        self._by_connection[connection] = (client, is_read_committed)

    def forget(self, connection: int) -> None:
        self._by_connection.pop(connection, None)

    def read_committed_clients(self) -> frozenset[ClientIdentity]:
        """Returns the clients of which all consumers read only committed records."""
        committed = {client for client, is_read_committed in self._by_connection.values() if is_read_committed}
        if committed:
            committed -= {client for client, is_read_committed in self._by_connection.values() if not is_read_committed}
        return frozenset(committed)
