"""Who may come in: a limit on the connections of some listeners, and on those from one address."""

from collections.abc import Callable

from moldau.settings.broker import BrokerSettings


class Admission:
    """Counts the open connections of the listeners that share it."""

    def __init__(self, settings: Callable[[], BrokerSettings]) -> None:
        self._settings = settings
        self._per_address: dict[str, int] = {}
        self.total = 0

    def admit(self, address: str) -> bool:
        settings = self._settings()
        count = self._per_address.get(address, 0)
        if self.total >= settings.max_connections or count >= settings.max_connections_per_ip:
            return False
        self.total += 1
        self._per_address[address] = count + 1
        return True

    def leave(self, address: str) -> None:
        self.total -= 1
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
