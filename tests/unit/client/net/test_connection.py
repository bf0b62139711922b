"""One connection: API versions, pipelined responses, and its end."""

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.client.errors import ConnectionLostError, RequestTimedOutError, UnsupportedVersionError
from moldau.client.net.api_versions import SUPPORTED_VERSIONS, VersionRange, choose_version
from moldau.client.net.connection import Connection
from moldau.testing import Broker
from moldau.wire.api_keys import ApiKey
from moldau.wire.schema import message_type
from support.scripted_broker import Disconnect, Hang, ReceivedRequest, ScriptedBroker, ScriptedResponse, Tree, api_keys

METADATA: Tree = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
TIMEOUT_MS = 10_000


async def connect(broker: ScriptedBroker, **settings: Any) -> Connection:
    return await Connection.open("127.0.0.1", broker.port, timeout_ms=TIMEOUT_MS, **settings)


def with_broker(test: Callable[[ScriptedBroker, Connection], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def main() -> None:
        async with ScriptedBroker(**settings) as broker:
            connection = await connect(broker)
            try:
                await test(broker, connection)
            finally:
                connection.close()

    asyncio.run(main())


# Versions


def test_every_version_the_client_speaks_has_a_schema() -> None:
    for api, versions in SUPPORTED_VERSIONS.items():
        for version in range(versions.minimum, versions.maximum + 1):
            assert message_type(api, version, "request")
            assert message_type(api, version, "response")


def test_the_highest_version_of_both_is_chosen() -> None:
    ours = SUPPORTED_VERSIONS[ApiKey.METADATA]
    assert choose_version(ApiKey.METADATA, {ApiKey.METADATA: VersionRange(0, 99)}) == ours.maximum
    assert choose_version(ApiKey.METADATA, {ApiKey.METADATA: VersionRange(0, ours.minimum)}) == ours.minimum
    assert choose_version(ApiKey.METADATA, {ApiKey.METADATA: VersionRange(0, 99)}, version_max=11) == 11


@pytest.mark.parametrize("theirs", [VersionRange(0, 2), VersionRange(90, 99)])
def test_ranges_that_do_not_meet_are_a_clear_error(theirs: VersionRange) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"METADATA.*10-13.*{theirs}"):
        choose_version(ApiKey.METADATA, {ApiKey.METADATA: theirs})
    with pytest.raises(UnsupportedVersionError, match="does not support METADATA"):
        choose_version(ApiKey.METADATA, {})


def test_a_connection_speaks_with_a_real_broker() -> None:
    async def main() -> None:
        async with Broker(topics={"orders": 2}) as broker:
            host, port = broker.bootstrap.split(":")
            connection = await Connection.open(host, int(port))
            answer = await connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS)
            assert [topic.name for topic in answer.topics] == ["orders"]
            assert answer.api_version == SUPPORTED_VERSIONS[ApiKey.METADATA].maximum
            older = await connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS, version_max=10)
            assert older.api_version == 10
            connection.close()

    asyncio.run(main())


def test_an_exact_version_is_used_or_rejected() -> None:
    async def test(broker: ScriptedBroker, connection: Connection) -> None:
        await connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS, version=11)
        assert broker.received_requests[-1].version == 11
        sent = len(broker.received_requests)
        with pytest.raises(UnsupportedVersionError, match="METADATA: version 99 is needed"):
            connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS, version=99)
        assert len(broker.received_requests) == sent

    with_broker(test)
    with pytest.raises(UnsupportedVersionError, match="does not support METADATA"):
        choose_version(ApiKey.METADATA, {}, version=11)


def test_nodes_may_use_versions_that_the_client_does_not() -> None:
    assert SUPPORTED_VERSIONS[ApiKey.FETCH].maximum < 17
    choose_version(ApiKey.FETCH, {ApiKey.FETCH: VersionRange(4, 17)}, version=17)
    with pytest.raises(UnsupportedVersionError, match="FETCH: version 18 is needed, the broker supports 4-17"):
        choose_version(ApiKey.FETCH, {ApiKey.FETCH: VersionRange(4, 17)}, version=18)


@pytest.mark.parametrize("theirs", [VersionRange(0, 0), VersionRange(0, 2), VersionRange(0, 3)])
def test_api_versions_is_sent_again_in_the_version_of_an_older_broker(theirs: VersionRange) -> None:
    def api_versions(received: ReceivedRequest) -> ScriptedResponse:
        if received.version > theirs.maximum:
            refusal = api_keys({ApiKey.API_VERSIONS: theirs}) if theirs.maximum else []
            return {"version": 0, "error_code": 35, "api_keys": refusal}
        return {"error_code": 0, "throttle_time": 0, "api_keys": api_keys(SUPPORTED_VERSIONS)}

    async def test(broker: ScriptedBroker, connection: Connection) -> None:
        assert [each.version for each in broker.received_requests] == [4, theirs.maximum]
        assert (await connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS)).cluster_id == "scripted"

    with_broker(test, scripts={ApiKey.API_VERSIONS: api_versions})


def test_an_unsupported_api_is_an_error_without_closing_the_connection() -> None:
    async def test(broker: ScriptedBroker, connection: Connection) -> None:
        with pytest.raises(UnsupportedVersionError, match="DELETE_GROUPS"):
            await connection.call(ApiKey.DELETE_GROUPS, {"groups_names": []}, timeout_ms=TIMEOUT_MS)
        await connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS)

    with_broker(test, versions={ApiKey.METADATA: VersionRange(0, 12), ApiKey.API_VERSIONS: VersionRange(0, 4)})


# Order


def test_pipelined_requests_get_their_own_responses() -> None:
    async def slow_first(received: ReceivedRequest) -> ScriptedResponse:
        if received.request.coordinator_keys == ["0"]:
            await asyncio.sleep(0.02)
        key = received.request.coordinator_keys[0]
        found = {"key": key, "node_id": int(key), "host": "", "port": 1, "error_code": 0, "error_message": None}
        return {"throttle_time": 0, "coordinators": [found]}

    async def test(broker: ScriptedBroker, connection: Connection) -> None:
        sent = [
            connection.call(
                ApiKey.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [str(n)]}, timeout_ms=TIMEOUT_MS
            )
            for n in range(10)
        ]
        assert connection.in_flight == 10
        assert [(await each).coordinators[0].node_id for each in sent] == list(range(10))
        assert connection.in_flight == 0

    with_broker(test, scripts={ApiKey.FIND_COORDINATOR: slow_first})


def test_a_caller_that_gives_up_does_not_disturb_the_others() -> None:
    async def test(broker: ScriptedBroker, connection: Connection) -> None:
        first = connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS)
        second = connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS)
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).cluster_id == "scripted"
        assert connection.is_open

    with_broker(test)


def test_a_response_larger_than_the_buffer_is_received() -> None:
    topics = {f"a-topic-with-a-long-name-{number:05d}": 3 for number in range(1_000)}

    async def test(broker: ScriptedBroker, connection: Connection) -> None:
        sent = [connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS) for _ in range(3)]
        for each in sent:
            assert [topic.name for topic in (await each).topics] == list(topics)

    with_broker(test, topics=topics)


# Ends


def test_a_disconnect_fails_all_requests_in_flight() -> None:
    async def test(broker: ScriptedBroker, connection: Connection) -> None:
        sent = [connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS) for _ in range(3)]
        for each in sent:
            with pytest.raises(ConnectionLostError, match="before the response to METADATA"):
                await each
        assert not connection.is_open
        with pytest.raises(ConnectionLostError, match="is closed"):
            await connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS)

    with_broker(test, scripts={ApiKey.METADATA: lambda _: Disconnect})


def test_a_request_timeout_closes_the_connection() -> None:
    async def test(broker: ScriptedBroker, connection: Connection) -> None:
        late = connection.call(ApiKey.METADATA, METADATA, timeout_ms=20)
        behind = connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS)
        with pytest.raises(RequestTimedOutError, match="did not respond to METADATA within 20 ms"):
            await late
        with pytest.raises(ConnectionLostError, match="did not respond to METADATA"):
            await behind
        assert not connection.is_open

    with_broker(test, scripts={ApiKey.METADATA: lambda _: Hang})


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (struct.pack(">i", 4711), "unexpected response to request 4711"),
        (struct.pack(">ib", 2, 0) + b"\xff" * 3, "cannot be decoded"),
        (struct.pack(">ib", 2, 0) + b"\x00" * 4 + b"\x7f" * 40, "cannot be decoded"),
        (b"", "invalid frame size of 0 bytes"),
    ],
)
def test_nonsense_ends_the_connection(frame: bytes, reason: str) -> None:
    async def test(broker: ScriptedBroker, connection: Connection) -> None:
        with pytest.raises(ConnectionLostError, match=reason):
            await connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS)
        assert not connection.is_open

    with_broker(test, scripts={ApiKey.METADATA: lambda _: frame})


def test_a_frame_over_the_limit_is_not_even_received() -> None:
    async def main() -> None:
        async with ScriptedBroker(topics={f"topic-{n}": 1 for n in range(100)}) as broker:
            connection = await connect(broker, frame_bytes_max=1_000)
            with pytest.raises(ConnectionLostError, match="the limit is 1000"):
                await connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS)

    asyncio.run(main())


def test_no_broker_is_a_lost_connection() -> None:
    async def main() -> None:
        async with ScriptedBroker() as broker:
            port = broker.port
        with pytest.raises(ConnectionLostError, match=f"no connection to 127.0.0.1:{port}"):
            await Connection.open("127.0.0.1", port)

    asyncio.run(main())


@pytest.mark.parametrize("answer", [Hang, Disconnect])
def test_a_failed_handshake_leaves_no_open_connection(answer: ScriptedResponse) -> None:
    async def main() -> None:
        async with ScriptedBroker({ApiKey.API_VERSIONS: lambda _: answer}) as broker:
            expected, timeout_ms = (RequestTimedOutError, 30) if answer is Hang else (ConnectionLostError, TIMEOUT_MS)
            with pytest.raises(expected):
                await Connection.open("127.0.0.1", broker.port, timeout_ms=timeout_ms)

    asyncio.run(main())


def test_close_fails_requests_in_flight() -> None:
    async def test(broker: ScriptedBroker, connection: Connection) -> None:
        sent = connection.call(ApiKey.METADATA, METADATA, timeout_ms=TIMEOUT_MS)
        connection.close()
        with pytest.raises(ConnectionLostError, match="this client closed it"):
            await sent

    with_broker(test, scripts={ApiKey.METADATA: lambda _: Hang})
