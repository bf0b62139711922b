"""Parser and checks of listeners (`127.0.0.1:9092`, `PLAINTEXT://broker.example:9092`) and advertised listeners."""

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple

from moldau.errors import InvalidConfigError

LISTENER_PATTERN = re.compile(
    r"((?P<name>[A-Za-z0-9_.-]+)://)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]*):(?P<port>[0-9]{1,5})", re.ASCII
)
WILDCARD_SPELLINGS = re.compile(r"0x0+|0+|(0x0+|0+)(\.(0x0+|0+)){1,3}")
"""Spellings of 0.0.0.0 that the operating system accepts and `ipaddress` rejects."""
SECURE_PROTOCOLS = ("SSL", "SASL", "TLS")
DEFAULT_NAME = "PLAINTEXT"


class ListenerEndpoint(NamedTuple):
    name: str
    """The listener name. Clients of a listener receive the advertised address with the same listener name."""
    host: str
    port: int
    """0 means any free port."""

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
    """Parses listeners with unique names. Listeners without a name are named PLAINTEXT, PLAINTEXT_2, ..."""
    listeners: list[ListenerEndpoint] = []
    for position, address in enumerate(addresses, start=1):
        listener = _parse(address, setting, DEFAULT_NAME if position == 1 else f"{DEFAULT_NAME}_{position}")
        if any(listener.name == other.name for other in listeners):
            raise InvalidConfigError(f"{setting}: two listeners have the name {listener.name}; names must be unique")
        if listener.port and any(listener[1:] == other[1:] for other in listeners):
            raise InvalidConfigError(f"{setting}: {listener.address} is listed twice")
        listeners.append(listener)
    return tuple(listeners)


def _parse(address: str, setting: str, default_name: str) -> ListenerEndpoint:
    match = LISTENER_PATTERN.fullmatch(address.strip())
    if match is None or int(match["port"]) > 65_535:
        raise InvalidConfigError(
            f"{setting}: {address!r} is not an address; use host:port or NAME://host:port, for example 127.0.0.1:9092"
        )
    name = (match["name"] or default_name).upper()
    if any(word in name for word in SECURE_PROTOCOLS):
        raise InvalidConfigError(
            f"{setting}: {address} requests a secured listener, but only plaintext is supported; "
            f"a listener with this name would be open to everyone"
        )
    if not match["host"]:
        raise InvalidConfigError(
            f"{setting}: {address} has no host; use 127.0.0.1:{match['port']} for this machine only, "
            f"or 0.0.0.0:{match['port']} for all network interfaces"
        )
    return ListenerEndpoint(name, match["host"].strip("[]"), int(match["port"]))


def check_listeners(listeners: Sequence[ListenerEndpoint], advertised: Sequence[ListenerEndpoint]) -> None:
    """Raises InvalidConfigError if a client would receive an address to which clients cannot connect."""
    if not listeners:
        raise InvalidConfigError("listen: at least one address is required, for example 127.0.0.1:9092")
    names = [listener.name for listener in listeners]
    for endpoint in advertised:
        if endpoint.name not in names:
            raise InvalidConfigError(
                f"advertised.listeners: listen has no listener {endpoint.name}, only {', '.join(names)}"
            )
        if endpoint.is_wildcard:
            raise InvalidConfigError(
                f"advertised.listeners: clients cannot connect to {endpoint.address}; use the name of this machine"
            )
    advertised_names = [endpoint.name for endpoint in advertised]
    for listener in listeners:
        if listener.is_wildcard and listener.name not in advertised_names:
            raise InvalidConfigError(
                f"listen: {listener.address} listens on all interfaces, so clients need an address to connect "
                f"to; set advertised.listeners, for example to my-host.example:{listener.port}"
            )


def advertised_endpoints(
    bound: Sequence[ListenerEndpoint], advertised: Sequence[ListenerEndpoint]
) -> tuple[ListenerEndpoint, ...]:
    """Returns the endpoints to advertise for bound listeners. Port 0 is replaced by the bound port."""
    by_name = {listener.name: listener for listener in advertised}
    endpoints = []
    for listener in bound:
        endpoint = by_name.get(listener.name, listener)
        endpoints.append(endpoint._replace(port=endpoint.port or listener.port))
    return tuple(endpoints)
