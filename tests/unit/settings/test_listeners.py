"""Parsing and checks of listener addresses."""

import pytest

from moldau.errors import InvalidConfigError
from moldau.settings.broker import BrokerSettings
from moldau.settings.listeners import ListenerEndpoint, advertised_endpoints, parse_listeners


@pytest.mark.parametrize(
    ("address", "listener"),
    [
        ("127.0.0.1:9092", ListenerEndpoint("PLAINTEXT", "127.0.0.1", 9092)),
        ("PLAINTEXT://localhost:0", ListenerEndpoint("PLAINTEXT", "localhost", 0)),
        ("lan://my-host.example:65535", ListenerEndpoint("LAN", "my-host.example", 65535)),
        ("[::1]:9092", ListenerEndpoint("PLAINTEXT", "::1", 9092)),
    ],
)
def test_addresses_with_and_without_name(address: str, listener: ListenerEndpoint) -> None:
    assert parse_listeners([address], "listen") == (listener,)


def test_unnamed_listeners_get_names() -> None:
    names = [each.name for each in parse_listeners(["127.0.0.1:1", "10.0.0.1:1", "LAN://10.0.0.2:1"], "listen")]
    assert names == ["PLAINTEXT", "PLAINTEXT_2", "LAN"]


@pytest.mark.parametrize(
    "address", ["9092", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "a b:1", "*:9092", "http://x:1/y", "::1:9092"]
)
def test_an_invalid_address_is_an_error_with_an_example(address: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"is not an address; .*127\.0\.0\.1:9092"):
        parse_listeners([address], "listen")


@pytest.mark.parametrize("address", ["SSL://127.0.0.1:1", "SASL_PLAINTEXT://127.0.0.1:1", "CLIENT_TLS://127.0.0.1:1"])
def test_a_secured_listener_name_is_rejected(address: str) -> None:
    with pytest.raises(InvalidConfigError, match="secured"):
        BrokerSettings(listen=(address,))


@pytest.mark.parametrize("address", [":9092", "PLAINTEXT://:9092"])
def test_an_address_without_host_is_rejected(address: str) -> None:
    with pytest.raises(InvalidConfigError, match="has no host"):
        BrokerSettings(listen=(address,))


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "0", "00.0", "0x0", "[::]", "[::0]", "[0:0:0:0:0:0:0:0]", "[::ffff:0.0.0.0]"]
)
def test_wildcard_addresses_need_an_advertised_listener(host: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"set advertised\.listeners"):
        BrokerSettings(listen=(f"{host}:9092",))
    told = BrokerSettings(listen=(f"{host}:9092",), advertised_listeners=("my-host:9092",)).advertised
    assert told == (ListenerEndpoint("PLAINTEXT", "my-host", 9092),)


def test_an_explicit_non_local_address_is_accepted() -> None:
    assert BrokerSettings(listen=("192.168.1.7:9092",)).listeners[0].host == "192.168.1.7"


def test_the_default_listener_is_local() -> None:
    assert BrokerSettings().listeners == (ListenerEndpoint("PLAINTEXT", "127.0.0.1", 9092),)


@pytest.mark.parametrize(
    ("listen", "advertised", "complaint"),
    [
        ((), (), "at least one address"),
        (("127.0.0.1:1", "127.0.0.1:1"), (), "listed twice"),
        (("A://127.0.0.1:1", "A://127.0.0.1:2"), (), "two listeners have the name A"),
        (("A://127.0.0.1:1",), ("B://host:1",), "listen has no listener B, only A"),
        (("A://127.0.0.1:1",), ("A://0.0.0.0:1",), "clients cannot connect to"),
    ],
)
def test_conflicting_listeners_are_rejected(
    listen: tuple[str, ...], advertised: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(InvalidConfigError, match=complaint):
        BrokerSettings(listen=listen, advertised_listeners=advertised)


def test_the_actual_port_is_advertised() -> None:
    bound = [
        ListenerEndpoint("A", "127.0.0.1", 40001),
        ListenerEndpoint("B", "0.0.0.0", 40002),
        ListenerEndpoint("C", "0.0.0.0", 40003),
    ]
    advertised = [ListenerEndpoint("B", "b.example", 0), ListenerEndpoint("C", "c.example", 443)]
    assert advertised_endpoints(bound, advertised) == (
        ListenerEndpoint("A", "127.0.0.1", 40001),
        ListenerEndpoint("B", "b.example", 40002),
        ListenerEndpoint("C", "c.example", 443),
    )


def test_formatted_addresses_parse_to_themselves() -> None:
    assert str(ListenerEndpoint("A", "::1", 9092)) == "A://[::1]:9092"
    assert str(ListenerEndpoint("A", "127.0.0.1", 9092)) == "A://127.0.0.1:9092"
