"""Who may come in: a limit on the connections of some listeners, and on those from one address."""

from collections.abc import Callable

from moldau.settings.broker import BrokerSettings


class ConnectionQuotas:
    """Counts the open connections of the listeners that share it."""

    def __init__(self, settings: Callable[[], BrokerSettings]) -> None:
        self._settings = settings
        self._per_address: dict[str, int] = {}
        self.connection_count = 0

    def acquire(self, address: str) -> bool:
        settings = self._settings()
        count = self._per_address.get(address, 0)
        if self.connection_count >= settings.max_connections or count >= settings.max_connections_per_ip:
            return False
        self.connection_count += 1
        self._per_address[address] = count + 1
        return True

    def release(self, address: str) -> None:
        self.connection_count -= 1
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
