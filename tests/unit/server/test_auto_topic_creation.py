"""Automatic topic creation: one creation per topic, a bounded number of them, and a backoff after failures."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import pytest

from moldau.controller.requests import CreateTopicResult, NewTopic
from moldau.errors import InvalidReplicationFactorError, MoldauError, RequestTimedOutError, TopicExistsError
from moldau.server import auto_topic_creation
from moldau.server.auto_topic_creation import RETRY_BACKOFF_MS, AutoTopicCreationManager
from support.replicas import TestClock

OFFSETS_TOPIC = "__consumer_offsets"


class Controller:
    """Creates topics when `is_open` is set. Results come from `errors`; `failure` is raised."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.errors: dict[str, MoldauError] = {}
        self.failure: Exception | None = None
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.offsets_topic_requests = 0

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[CreateTopicResult]:
        self.requests.append([topic.name for topic in topics])
        await self.is_open.wait()
        if self.failure is not None:
            raise self.failure
        return [CreateTopicResult(topic.name, error=self.errors.get(topic.name)) for topic in topics]

    async def ensure_offsets_topic(self) -> None:
        self.offsets_topic_requests += 1
        await self.is_open.wait()


class Parts:
    def __init__(self) -> None:
        self.controller = Controller()
        self.clock = TestClock()
        self.manager = AutoTopicCreationManager(
            self.controller, {OFFSETS_TOPIC: self.controller.ensure_offsets_topic}, self.clock
        )

    async def create(self, *names: str) -> None:
        """Starts creations and lets them run until they wait or end."""
        self.manager.create_topics(names)
        for _ in range(5):
            await asyncio.sleep(0)


def run(test: Callable[[Parts], Awaitable[None]]) -> None:
    async def main() -> None:
        parts = Parts()
        await test(parts)
        await parts.manager.close()

    asyncio.run(main())


def test_the_topics_of_one_call_are_created_together() -> None:
    async def test(parts: Parts) -> None:
        parts.manager.create_topics(["a", "b"])
        assert parts.controller.requests == [], "the caller does not wait"
        await parts.create("c")
        assert parts.controller.requests == [["a", "b"], ["c"]]

    run(test)


def test_a_topic_is_not_created_twice_at_the_same_time() -> None:
    async def test(parts: Parts) -> None:
        parts.controller.is_open.clear()
        for _ in range(3):
            await parts.create("a")
        await parts.create("a", "b")
        assert parts.controller.requests == [["a"], ["b"]]
        parts.controller.is_open.set()
        await parts.create()
        # The topic may have been deleted since.
        await parts.create("a")
        assert parts.controller.requests == [["a"], ["b"], ["a"]]

    run(test)


def test_the_number_of_creations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_topic_creation, "IN_FLIGHT_MAX", 3)

    async def test(parts: Parts) -> None:
        parts.controller.is_open.clear()
        await parts.create("a", "b")
        await parts.create("c", "d", "e")
        assert parts.controller.requests == [["a", "b"], ["c"]]
        parts.controller.is_open.set()
        await parts.create()
        await parts.create("d", "e")
        assert parts.controller.requests[2:] == [["d", "e"]]

    run(test)


@pytest.mark.parametrize("whole_request_fails", [True, False])
def test_a_failure_is_logged_once_and_repeated_after_a_backoff(
    caplog: pytest.LogCaptureFixture, whole_request_fails: bool
) -> None:
    async def test(parts: Parts) -> None:
        error = InvalidReplicationFactorError("too few brokers")
        if whole_request_fails:
            parts.controller.failure = error
        else:
            parts.controller.errors["a"] = error
        for _ in range(3):
            await parts.create("a")
        assert parts.controller.requests == [["a"]]
        parts.clock.now_ms += RETRY_BACKOFF_MS - 1
        await parts.create("a")
        assert parts.controller.requests == [["a"]]
        parts.clock.now_ms += 1
        await parts.create("a")
        assert parts.controller.requests == [["a"], ["a"]]
        assert caplog.messages.count("automatic topic creation failed") == 1
        parts.clock.now_ms += RETRY_BACKOFF_MS
        another = RequestTimedOutError("the controller could not be reached in time")
        parts.controller.failure, parts.controller.errors["a"] = another, another
        await parts.create("a")
        assert caplog.messages.count("automatic topic creation failed") == 2, "a new reason is logged"
        assert parts.manager.unexpected_errors == 0

    with caplog.at_level(logging.WARNING):
        run(test)


def test_only_the_failed_topic_of_a_request_waits() -> None:
    async def test(parts: Parts) -> None:
        parts.controller.errors["bad"] = InvalidReplicationFactorError("too few brokers")
        await parts.create("bad", "good")
        await parts.create("bad", "good")
        assert parts.controller.requests == [["bad", "good"], ["good"]]

    run(test)


def test_a_success_ends_the_backoff(caplog: pytest.LogCaptureFixture) -> None:
    async def test(parts: Parts) -> None:
        parts.controller.errors["a"] = InvalidReplicationFactorError("too few brokers")
        await parts.create("a")
        parts.clock.now_ms += RETRY_BACKOFF_MS
        # Another broker has created the topic at the same time.
        parts.controller.errors["a"] = TopicExistsError("a exists")
        await parts.create("a")
        await parts.create("a")
        assert len(parts.controller.requests) == 3

    with caplog.at_level(logging.WARNING):
        run(test)
    assert caplog.messages.count("automatic topic creation failed") == 1


def test_the_number_of_remembered_failures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_topic_creation, "FAILURES_MAX", 2)

    async def test(parts: Parts) -> None:
        parts.controller.failure = RequestTimedOutError("no controller")
        await parts.create("a", "b", "c")
        await parts.create("a", "b", "c")
        assert parts.controller.requests == [["a", "b", "c"], ["a"]], "the oldest failure was forgotten"

    run(test)


def test_the_group_coordinator_creates_its_topic() -> None:
    async def test(parts: Parts) -> None:
        await parts.create("a", OFFSETS_TOPIC)
        assert parts.controller.requests == [["a"]]
        assert parts.controller.offsets_topic_requests == 1

    run(test)


def test_other_internal_topics_are_not_created() -> None:
    async def test(parts: Parts) -> None:
        await parts.create("__transaction_state", "__share_group_state")
        assert parts.controller.requests == []

    run(test)


def test_an_unexpected_exception_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test(parts: Parts) -> None:
        parts.controller.failure = RuntimeError("a bug")
        await parts.create("a")
        await parts.create("a")
        assert parts.manager.unexpected_errors == 1, "a client that retries at once does not start it again"

    run(test)
    assert "a bug" in caplog.text


def test_closing_cancels_creations() -> None:
    async def test(parts: Parts) -> None:
        parts.controller.is_open.clear()
        await parts.create("a")
        parts.manager.create_topics(["started too late to run"])
        await parts.manager.close()
        await parts.create("b")
        assert parts.controller.requests == [["a"]]
        assert len(asyncio.all_tasks()) == 1

    run(test)
