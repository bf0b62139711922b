"""Which topics the relay of an outbox takes for missing."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.client.errors import ErrorCode, KafkaError, RequestTimedOutError
from moldau.client.net.cluster import Cluster
from moldau.outbox import relay
from moldau.outbox.relay import _Session

MISSING, STARTING, INVALID = "missing", "starting", "invalid"


class FakeCluster:
    """Brokers that never create a topic in time."""

    def __init__(self, topic_errors: dict[str, ErrorCode]) -> None:
        self.topics: dict[str, object] = {}
        self.topic_errors = topic_errors

    def retry(self, timeout_ms: int) -> Any:
        return SimpleNamespace(remaining_ms=timeout_ms)

    def track(self, names: Any) -> None:
        assert not list(names)

    async def refresh(self, names: list[str], *, timeout_ms: int) -> None:
        """The errors stay the same."""

    async def wait_for_topics(self, names: list[str], *, timeout_ms: int, create: bool) -> None:
        errors = [KafkaError(self.topic_errors[name], name) for name in names]
        # Retriable errors end the wait only after the timeout.
        raise next((each for each in errors if not each.is_retriable), errors[0])


def found_missing(topic_errors: dict[str, ErrorCode]) -> dict[str, tuple[str, float]]:
    session: Any = SimpleNamespace(_cluster=FakeCluster(topic_errors), _missing_topics={})
    asyncio.run(_Session._wait_for_topics(session, sorted(topic_errors)))
    return session._missing_topics  # type: ignore[no-any-return]


def test_missing_and_invalid_topics_are_found() -> None:
    errors = {MISSING: ErrorCode.unknown_topic_or_partition, INVALID: ErrorCode.invalid_topic_exception}
    assert sorted(found_missing(errors)) == [INVALID, MISSING]


def test_a_topic_that_may_appear_is_not_missing() -> None:
    errors = {MISSING: ErrorCode.unknown_topic_or_partition, STARTING: ErrorCode.leader_not_available}
    with pytest.raises(KafkaError, match=STARTING) as caught:
        found_missing(errors)
    assert caught.value.code is ErrorCode.leader_not_available


class SilentCluster(Cluster):
    """Brokers that respond once, before a topic is created."""

    refreshes = 0

    async def refresh(self, topics: Any = None, *, timeout_ms: int | None = None, **_: Any) -> None:
        self.refreshes += 1
        if self.refreshes == 1:
            self._metadata.topic_errors |= dict.fromkeys(topics, ErrorCode.unknown_topic_or_partition)
            return
        assert timeout_ms is not None
        await asyncio.sleep(timeout_ms / 1000)
        raise RequestTimedOutError("no broker returned metadata")


def test_a_topic_is_not_missing_if_brokers_stop_responding(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        session: Any = SimpleNamespace(_cluster=SilentCluster("127.0.0.1:1"), _missing_topics={})
        with pytest.raises(RequestTimedOutError):
            await _Session._wait_for_topics(session, [STARTING])
        assert session._missing_topics == {}

    monkeypatch.setattr(relay, "TOPIC_TIMEOUT_MS", 200)
    monkeypatch.setattr(relay, "CONNECT_TIMEOUT_MS", 200)
    asyncio.run(body())
