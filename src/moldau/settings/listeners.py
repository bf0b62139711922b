"""Listener addresses (`127.0.0.1:9092`, `PLAINTEXT://broker.example:9092`) and what clients are told."""

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple

from moldau.errors import InvalidConfigError

LISTENER_PATTERN = re.compile(
    r"((?P<name>[A-Za-z0-9_.-]+)://)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]*):(?P<port>[0-9]{1,5})",
    re.ASCII,
)
WILDCARD_SPELLINGS = re.compile(r"0x0+|0+|(0x0+|0+)(\.(0x0+|0+)){1,3}")
"""Spellings of 0.0.0.0 that the operating system takes and `ipaddress` does not."""
SECURE_PROTOCOLS = ("SSL", "SASL", "TLS")
DEFAULT_NAME = "PLAINTEXT"


class ListenerEndpoint(NamedTuple):
    name: str
    """Clients that came in by a listener are told the advertised address of the same name."""
    host: str
    port: int
    """0 takes any free port."""

    @property
    def is_wildcard(self) -> bool:
        try:
            address = ip_address(self.host)
        except ValueError:
            return WILDCARD_SPELLINGS.fullmatch(self.host) is not None
        mapped = getattr(address, "ipv4_mapped", None)
        return address.is_unspecified or (mapped is not None and mapped.is_unspecified)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def parse_listeners(addresses: Sequence[str], setting: str) -> tuple[ListenerEndpoint, ...]:
    """Listeners by unique name; those given without one are PLAINTEXT, PLAINTEXT_2, ..."""
    listeners: list[ListenerEndpoint] = []
    for position, address in enumerate(addresses, start=1):
        listener = _parse(address, setting, DEFAULT_NAME if position == 1 else f"{DEFAULT_NAME}_{position}")
        if any(listener.name == other.name for other in listeners):
            raise InvalidConfigError(
                f"{setting}: two listeners are named {listener.name}; give each its own name"
            )
        if listener.port and any(listener[1:] == other[1:] for other in listeners):
            raise InvalidConfigError(f"{setting}: {listener.address} is given twice")
        listeners.append(listener)
    return tuple(listeners)


def _parse(address: str, setting: str, default_name: str) -> ListenerEndpoint:
    found = LISTENER_PATTERN.fullmatch(address.strip())
    if found is None or int(found["port"]) > 65_535:
        raise InvalidConfigError(
            f"{setting}: {address!r} is not an address; write host:port or NAME://host:port, "
            f"for example 127.0.0.1:9092"
        )
    name = (found["name"] or default_name).upper()
    if any(word in name for word in SECURE_PROTOCOLS):
        raise InvalidConfigError(
            f"{setting}: {address} asks for a secured listener; only plaintext listeners are served, "
            f"and one that merely has the name would be open to all"
        )
    if not found["host"]:
        raise InvalidConfigError(
            f"{setting}: {address} names no host; write 127.0.0.1:{found['port']} for this machine only, "
            f"or 0.0.0.0:{found['port']} for every network it is on"
        )
    return ListenerEndpoint(name, found["host"].strip("[]"), int(found["port"]))


def check_listeners(listeners: Sequence[ListenerEndpoint], advertised: Sequence[ListenerEndpoint]) -> None:
    """Refuses what would leave clients with an address they cannot reach."""
    if not listeners:
        raise InvalidConfigError("listen: at least one address is needed, for example 127.0.0.1:9092")
    names = [listener.name for listener in listeners]
    for told in advertised:
        if told.name not in names:
            raise InvalidConfigError(
                f"advertised.listeners: no listener is named {told.name}; listen has {', '.join(names)}"
            )
        if told.is_wildcard:
            raise InvalidConfigError(
                f"advertised.listeners: {told.address} is no address to connect to; name this machine"
            )
    told_names = [told.name for told in advertised]
    for listener in listeners:
        if listener.is_wildcard and listener.name not in told_names:
            raise InvalidConfigError(
                f"listen: {listener.address} listens on every network, so clients must be told where to "
                f"connect; set advertised.listeners, for example to my-host.example:{listener.port}"
            )


def advertised_endpoints(
    bound: Sequence[ListenerEndpoint], advertised: Sequence[ListenerEndpoint]
) -> tuple[ListenerEndpoint, ...]:
    """What clients are told of listeners that are open now, with the ports they really got."""
    told = {listener.name: listener for listener in advertised}
    endpoints = []
    for listener in bound:
        endpoint = told.get(listener.name, listener)
        endpoints.append(endpoint._replace(port=endpoint.port or listener.port))
    return tuple(endpoints)
