"""Requests between nodes: connections per lane, lost, refused and silent peers, changing addresses."""

import asyncio
import errno
from collections.abc import Coroutine
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from moldau.client.errors import ConnectionLostError
from moldau.client.net.connection import Connection
from moldau.concurrency.eager import start_eagerly
from moldau.errors import PeerUnreachableError
from moldau.metadata.image import BrokerRegistration, Endpoint, MetadataDelta, MetadataImage
from moldau.peers import probe as probing
from moldau.peers.client import PeerClient, publish_broker_endpoints
from moldau.peers.probe import ProbeResult
from moldau.platform.clock import SystemClock
from moldau.wire.api_keys import ApiKey
from support.scripted_broker import Disconnect, Hang, ReceivedRequest, ScriptedBroker, Tree

OTHER = 2
PATIENCE_S = 20
REQUEST = {
    "topics": [],
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


def run(test: "Coroutine[Any, Any, None]") -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


def make_client(broker: ScriptedBroker | None = None, **more: Any) -> PeerClient:
    peers = PeerClient(1, SystemClock(), request_timeout_ms=5_000, **more)
    if broker is not None:
        peers.update_endpoint(OTHER, "127.0.0.1", broker.port)
    return peers


async def send(peers: PeerClient, lane: str = "a", **more: Any) -> Any:
    return await peers.call(OTHER, ApiKey.METADATA, REQUEST, lane=lane, **more)


async def free_port() -> int:
    """Returns a port without a listener."""
    async with ScriptedBroker() as broker:
        return broker.port


def test_requests_on_a_lane_share_a_connection() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker:
            peers = make_client(broker)
            await asyncio.gather(*(send(peers, "a") for _ in range(5)))
            assert broker.connections == 1
            await send(peers, "b")
            assert broker.connections == 2
            await peers.close()

    run(test())


def test_a_request_uses_the_given_version() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker:
            peers = make_client(broker)
            await send(peers, version=11)
            assert broker.received_requests[-1].version == 11
            with pytest.raises(PeerUnreachableError) as raised:
                await send(peers, version=99)
            assert not raised.value.is_connection_refused
            assert not raised.value.was_sent
            await peers.close()

    run(test())


def test_an_unknown_node_is_unreachable() -> None:
    async def test() -> None:
        peers = make_client()
        with pytest.raises(PeerUnreachableError, match="no address of node 2"):
            await send(peers)
        assert await peers.probe(OTHER, 100) is ProbeResult.UNKNOWN

    run(test())


def test_only_a_refused_connection_proves_that_a_process_is_dead() -> None:
    async def test() -> None:
        peers = make_client()
        peers.update_endpoint(OTHER, "127.0.0.1", await free_port())
        with pytest.raises(PeerUnreachableError) as raised:
            await send(peers)
        assert raised.value.is_connection_refused
        assert await peers.probe(OTHER, 5_000) is ProbeResult.REFUSED

    run(test())


def test_a_name_with_several_addresses_is_refused_only_if_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(codes: dict[str, int | None]) -> ProbeResult:
        async def resolve(host: str, port: int) -> list[str]:
            return [each for each in codes if each != host]

        async def connect(host: str, port: int) -> int | None:
            return codes[host]

        monkeypatch.setattr(probing, "_resolve", resolve)
        monkeypatch.setattr(probing, "_try_connect", connect)
        return await probing.probe_address("node", 1, 5_000)

    refused, unreachable = errno.ECONNREFUSED, errno.EHOSTUNREACH
    assert asyncio.run(test({"node": None, "::1": refused, "127.0.0.1": refused})) is ProbeResult.REFUSED
    assert asyncio.run(test({"node": None, "::1": errno.EADDRNOTAVAIL, "127.0.0.1": refused})) is ProbeResult.REFUSED
    assert asyncio.run(test({"node": None, "::1": refused, "127.0.0.1": unreachable})) is ProbeResult.UNKNOWN
    assert asyncio.run(test({"node": None, "::1": refused, "127.0.0.1": 0})) is ProbeResult.REACHABLE
    assert asyncio.run(test({"node": None})) is ProbeResult.UNKNOWN


def test_localhost_is_refused_with_any_address_family() -> None:
    async def test() -> None:
        peers = make_client()
        peers.update_endpoint(OTHER, "localhost", await free_port())
        with pytest.raises(PeerUnreachableError) as raised:
            await send(peers)
        assert raised.value.is_connection_refused

    run(test())


def test_a_node_that_accepts_connections_is_reachable_without_responding() -> None:
    async def test() -> None:
        async with ScriptedBroker({ApiKey.API_VERSIONS: lambda _: Hang}) as broker:
            peers = make_client(broker)
            assert await peers.probe(OTHER, 5_000) is ProbeResult.REACHABLE
            with pytest.raises(PeerUnreachableError) as raised:
                await send(peers, timeout_ms=50)
            assert not raised.value.is_connection_refused
            await peers.close()

    run(test())


def test_a_late_response_closes_the_connection_and_the_next_request_opens_another() -> None:
    async def test() -> None:
        answers: list[Any] = [Hang]
        broker = ScriptedBroker()
        usual = broker.scripts[ApiKey.METADATA]
        broker.scripts[ApiKey.METADATA] = lambda received: answers.pop() if answers else usual(received)
        async with broker:
            peers = make_client(broker)
            with pytest.raises(PeerUnreachableError) as raised:
                await send(peers, timeout_ms=50)
            assert raised.value.was_sent
            assert not raised.value.is_connection_refused
            await send(peers)
            assert broker.connections == 2
            await peers.close()

    run(test())


def test_a_connection_closed_by_the_peer_is_reopened() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker:
            peers = make_client(broker)
            await send(peers, "heartbeats")
            broker.disconnect_all()
            while peers._pool._connections:
                await asyncio.sleep(0.001)
            await send(peers, "heartbeats")
            assert broker.connections == 2
            await peers.close()

    run(test())


def test_a_request_fails_with_its_connection() -> None:
    async def test() -> None:
        async with ScriptedBroker({ApiKey.METADATA: lambda _: Disconnect}) as broker:
            peers = make_client(broker)
            with pytest.raises(PeerUnreachableError) as raised:
                await send(peers)
            assert raised.value.was_sent
            await peers.close()

    run(test())


def test_a_new_address_is_used_and_requests_to_the_old_one_complete() -> None:
    async def test() -> None:
        release = asyncio.Event()
        old, new = ScriptedBroker(), ScriptedBroker()
        usual = old.scripts[ApiKey.METADATA]

        async def slow(received: ReceivedRequest) -> Tree:
            await release.wait()
            return usual(received)  # type: ignore[return-value]

        async with old, new:
            peers = make_client(old)
            await send(peers)
            old.scripts[ApiKey.METADATA] = slow
            first = asyncio.create_task(send(peers))
            while old.count(ApiKey.METADATA) < 2:
                await asyncio.sleep(0.001)
            peers.update_endpoint(OTHER, "127.0.0.1", new.port)
            await send(peers)
            assert new.count(ApiKey.METADATA) == 1
            release.set()
            await first
            peers.update_endpoint(OTHER, "127.0.0.1", new.port)
            await send(peers)
            assert new.connections == 1, "an unchanged address keeps the connection"
            await peers.close()

    run(test())


def test_a_node_that_closes_the_connection_at_once_is_not_asked_for_tls() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker:
            broker.scripts[ApiKey.API_VERSIONS] = lambda _: Disconnect()
            with pytest.raises(PeerUnreachableError) as raised:
                await send(make_client(broker))
            assert "closed" in str(raised.value)
            assert "security.protocol" not in str(raised.value)

    run(test())


def test_a_connection_to_an_outdated_address_is_not_used() -> None:
    async def test() -> None:
        async with ScriptedBroker() as old, ScriptedBroker() as new:
            reached, release = asyncio.Event(), asyncio.Event()

            async def connect(host: str, port: int, **more: Any) -> Connection:
                if port == old.port:
                    reached.set()
                    await release.wait()
                return await Connection.open(host, port, **more)

            peers = make_client(old, connect=connect)
            first = asyncio.create_task(send(peers))
            await reached.wait()
            peers.update_endpoint(OTHER, "127.0.0.1", new.port)
            await send(peers)
            release.set()
            with pytest.raises(PeerUnreachableError, match="no longer at"):
                await first
            assert old.count(ApiKey.METADATA) == 0
            await send(peers)
            assert new.connections == 1
            await peers.close()

    run(test())


def test_a_shared_attempt_respects_the_timeout_of_each_request() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker:
            release = asyncio.Event()

            async def connect(host: str, port: int, **more: Any) -> Connection:
                await release.wait()
                return await Connection.open(host, port, **more)

            peers = make_client(broker, connect=connect)
            patient = asyncio.create_task(send(peers))
            await asyncio.sleep(0)
            with pytest.raises(PeerUnreachableError) as raised:
                await send(peers, timeout_ms=20)
            assert not raised.value.was_sent
            cancelled = asyncio.create_task(send(peers))
            await asyncio.sleep(0)
            cancelled.cancel()
            release.set()
            await patient
            assert broker.connections == 1
            await peers.close()

    run(test())


def test_requests_work_without_a_current_task() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker:
            peers = make_client(broker)
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            def ended(result: Any, error: BaseException | None) -> None:
                done.set_result(result if error is None else error)

            start_eagerly(send(peers), ended)
            assert not isinstance(await done, BaseException)
            await peers.close()

    run(test())


def test_a_request_to_an_address_uses_its_own_connection() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker:
            peers = make_client()
            answer = await peers.call_address("127.0.0.1", broker.port, ApiKey.METADATA, REQUEST)
            assert answer.cluster_id == "scripted"
        with pytest.raises(PeerUnreachableError) as raised:
            await peers.call_address("127.0.0.1", broker.port, ApiKey.METADATA, REQUEST)
        assert raised.value.is_connection_refused

    run(test())


def test_closing_fails_pending_and_later_requests() -> None:
    async def test() -> None:
        async with ScriptedBroker({ApiKey.METADATA: lambda _: Hang}) as broker:
            peers = make_client(broker)
            received = asyncio.create_task(send(peers, "a"))
            while not broker.count(ApiKey.METADATA):
                await asyncio.sleep(0.001)
            never = asyncio.Event()

            async def connect(host: str, port: int, **more: Any) -> Connection:
                await never.wait()
                raise ConnectionLostError("never")

            peers._connect = connect  # type: ignore[assignment]
            opening = asyncio.create_task(send(peers, "b"))
            await asyncio.sleep(0)
            await peers.close()
            for each in (received, opening, asyncio.create_task(send(peers, "c"))):
                with pytest.raises(PeerUnreachableError):
                    await each

    run(test())


def test_disconnecting_fails_the_requests_in_flight() -> None:
    async def test() -> None:
        async with ScriptedBroker({ApiKey.METADATA: lambda _: Hang}) as broker:
            peers = make_client(broker)
            received = asyncio.create_task(send(peers, "a"))
            while not broker.count(ApiKey.METADATA):
                await asyncio.sleep(0.001)
            peers.disconnect(OTHER, "a")
            with pytest.raises(PeerUnreachableError):
                await received
            await peers.close()

    run(test())


def test_disconnecting_cancels_the_attempt_and_the_next_request_reconnects() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker:
            hangs = [asyncio.Event()]

            async def connect(host: str, port: int, **more: Any) -> Connection:
                if hangs:
                    await hangs.pop().wait()
                return await Connection.open(host, port, **more)

            peers = make_client(broker, connect=connect)
            received = asyncio.create_task(send(peers, "a"))
            while hangs:
                await asyncio.sleep(0)
            peers.disconnect(OTHER, "b")
            await asyncio.sleep(0)
            assert not received.done(), "other lanes are not affected"
            peers.disconnect(OTHER, "a")
            with pytest.raises(PeerUnreachableError, match="cancelled"):
                await received
            await send(peers, "a")
            await peers.close()

    run(test())


def broker_image(broker_id: int, port: int) -> BrokerRegistration:
    endpoints = (Endpoint("CLIENTS", "clients.example", 1), Endpoint("NODES", "127.0.0.1", port))
    return BrokerRegistration(broker_id, 1, UUID(int=1), endpoints, None, fenced=True)


def test_addresses_are_those_of_the_inter_broker_listener() -> None:
    peers = make_client()
    peers.update_endpoint(9, "voter.example", 9)
    publish = partial(publish_broker_endpoints, peers, "NODES")
    image = MetadataImage(brokers={1: broker_image(1, 101), 2: broker_image(2, 102)})
    publish(MetadataDelta(brokers_changed=(1, 2)), image)
    assert peers.addresses.get(2) == ("127.0.0.1", 102)
    image = MetadataImage(brokers={1: broker_image(1, 101)})
    publish(MetadataDelta(brokers_changed=(2,)), image)
    assert peers.addresses.get(2) is None
    assert peers.addresses.get(1) == ("127.0.0.1", 101)
    assert peers.addresses.get(9) == ("voter.example", 9)


def test_an_unregistered_voter_keeps_its_address() -> None:
    peers = make_client()
    peers.update_endpoint(1, "127.0.0.1", 91)
    publish = partial(publish_broker_endpoints, peers, "NODES")
    publish(MetadataDelta(brokers_changed=(1,)), MetadataImage(brokers={1: broker_image(1, 101)}))
    assert peers.addresses.get(1) == ("127.0.0.1", 101)
    publish(MetadataDelta(brokers_changed=(1,)), MetadataImage())
    assert peers.addresses.get(1) == ("127.0.0.1", 91)


def test_a_repeated_voter_address_does_not_override_a_newer_registration() -> None:
    peers = make_client()
    peers.update_endpoint(OTHER, "gamma", 9094)
    peers.update_broker_endpoint(OTHER, "gamma", 9194)
    peers.update_endpoint(OTHER, "gamma", 9094)
    assert peers.addresses.get(OTHER) == ("gamma", 9194)
    peers.update_endpoint(OTHER, "gamma", 9294)
    assert peers.addresses.get(OTHER) == ("gamma", 9294)
    peers.update_broker_endpoint(OTHER, "gamma", 9194)
    peers.remove_broker(OTHER)
    assert peers.addresses.get(OTHER) == ("gamma", 9294), "its voter address remains"


def test_a_node_that_closes_a_connection_is_reported() -> None:
    async def test() -> None:
        reported: list[int] = []
        async with ScriptedBroker({ApiKey.METADATA: [Disconnect()]}) as broker:
            peers = make_client(broker)
            peers.on_disconnect = reported.append
            await peers.call(OTHER, ApiKey.API_VERSIONS, {}, lane="a", version=0)
            peers.disconnect(OTHER, "a")
            await asyncio.sleep(0)
            assert reported == [], "this node closed the connection"
            with pytest.raises(PeerUnreachableError):
                await send(peers)
            assert reported == [OTHER]
            await peers.close()

    run(test())


def test_a_handshake_needs_a_response() -> None:
    async def test() -> None:
        peers = make_client()
        assert await peers.handshake(OTHER, 100) is ProbeResult.UNKNOWN, "no address is known"
        async with ScriptedBroker() as broker:
            peers.update_endpoint(OTHER, "127.0.0.1", broker.port)
            assert await peers.handshake(OTHER, 5_000) is ProbeResult.REACHABLE
            broker.scripts[ApiKey.API_VERSIONS] = lambda _: Disconnect
            assert await peers.handshake(OTHER, 5_000) is ProbeResult.CLOSED
            broker.scripts[ApiKey.API_VERSIONS] = lambda _: Hang
            assert await peers.handshake(OTHER, 100) is ProbeResult.UNKNOWN
        peers.update_endpoint(OTHER, "127.0.0.1", await free_port())
        assert await peers.handshake(OTHER, 5_000) is ProbeResult.REFUSED
        peers.update_endpoint(OTHER, "no-such-host.invalid", 9092)
        assert await peers.handshake(OTHER, 5_000) is ProbeResult.UNKNOWN, "the network proves nothing about the node"
        await peers.close()

    run(test())
