"""Messages in flight between producers, coordinator and leaders."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class InFlightMessage:
    name: str
    """For example "produce a to p-0"."""
    deliver: Callable[[], None]
    expires_with: object = None
    """A transaction without TV2 to which the message belongs. Such a protocol cannot tell a late message from one of
    the next transaction, so the network drops the message before that."""


class ScheduledNetwork:
    def __init__(self) -> None:
        self.in_flight: list[InFlightMessage] = []

    def send(self, name: str, deliver: Callable[[], None], expires_with: object = None) -> InFlightMessage:
        message = InFlightMessage(name, deliver, expires_with)
        self.in_flight.append(message)
        return message

    def deliver(self, message: InFlightMessage, *, duplicate: bool = False) -> None:
        """Delivers a message, which stays in flight if it is duplicated."""
        if not duplicate:
            self.in_flight.remove(message)
        message.deliver()

    def drop(self, message: InFlightMessage) -> None:
        self.in_flight.remove(message)

    def expire(self, transaction: object) -> None:
        if transaction is not None:
            self.in_flight = [each for each in self.in_flight if each.expires_with != transaction]
