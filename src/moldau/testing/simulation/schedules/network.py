"""Messages in flight between producers, coordinator and leaders."""

from collections.abc import Callable
from dataclasses import dataclass

from moldau.server.api import ClientConnection


@dataclass(eq=False, slots=True)
class InFlightMessage:
    name: str
    """For example "produce a to p-0"."""
    deliver: Callable[[], None]
    is_unique: bool = False
    """Whether the network cannot duplicate the message. A connection delivers each request once; with TV2 nothing
    depends on it."""


class ScheduledNetwork:
    def __init__(self) -> None:
        self.in_flight: list[InFlightMessage] = []
        self._connection_count = 0

    def connect(self) -> ClientConnection:
        """Opens a connection. Senders use one for each request, because a connection would deliver them in order."""
        self._connection_count += 1
        return ClientConnection("", "", self._connection_count)

    def send(self, name: str, deliver: Callable[[], None], *, is_unique: bool = False) -> InFlightMessage:
        message = InFlightMessage(name, deliver, is_unique)
        self.in_flight.append(message)
        return message

    def deliver(self, message: InFlightMessage, *, duplicate: bool = False) -> None:
        """Delivers a message, which stays in flight if it is duplicated."""
        if not duplicate:
            self.in_flight.remove(message)
        message.deliver()

    def drop(self, message: InFlightMessage) -> None:
        self.in_flight.remove(message)
