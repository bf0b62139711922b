"""Metadata responses for many partitions: kept until the metadata changes, and always equal to a new response."""

import asyncio
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.handlers import REGISTRY, a03_metadata
from moldau.handlers.a03_metadata import LARGE_PARTITIONS_MIN
from moldau.server.api import ClientConnection, EncodedResponse, RequestContext
from moldau.server.metadata_cache import MetadataResponseCache
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import decoder
from support.admin_broker import (
    LISTENER,
    AdminBroker,
    broker_image,
    decoded_request,
    handle,
    image_of,
    topic_id,
    versions_of,
)

TOPICS = {"large": LARGE_PARTITIONS_MIN, "small": 1}
NEWEST = REGISTRY[ApiKey.METADATA].max_version


@pytest.fixture
def descriptions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each response that was built."""
    built: list[object] = []
    describe = a03_metadata._describe

    def count(*arguments: Any) -> Any:
        built.append(arguments)
        return describe(*arguments)

    monkeypatch.setattr(a03_metadata, "_describe", count)
    return built


def new_broker() -> AdminBroker:
    return AdminBroker(image_of(TOPICS, brokers=[broker_image(2), broker_image(3, fenced=True)]))


def body(broker: AdminBroker, version: int = NEWEST, *, listener: str = LISTENER, **request: Any) -> object:
    """Sends a request for all topics by default. Returns the encoded response, or the tree of a small one."""
    session = RequestContext(ClientConnection("127.0.0.1:5000", listener), version, "tests")
    fields = {
        "topics": [] if version == 0 else None,
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
        **request,
    }
    response = asyncio.run(
        handle(ApiKey.METADATA, decoded_request(ApiKey.METADATA, version, **fields), session, broker)
    )
    return response.body if isinstance(response, EncodedResponse) else response


@pytest.mark.parametrize("version", versions_of(ApiKey.METADATA))
def test_a_response_for_many_partitions_is_built_once(version: int, descriptions: list[object]) -> None:
    broker = new_broker()
    first = body(broker, version)
    assert isinstance(first, bytes)
    assert body(broker, version) is first
    assert len(descriptions) == 1
    response = decoder(ApiKey.METADATA, version, "response")(memoryview(first))
    assert {topic.name: len(topic.partitions) for topic in response.topics} == TOPICS


def test_a_response_for_few_partitions_is_not_kept() -> None:
    broker = new_broker()
    assert not isinstance(body(broker, topics=[{"name": "small", "topic_id": None}]), bytes)
    assert isinstance(body(broker, topics=[{"name": "large", "topic_id": None}]), bytes)
    assert isinstance(body(broker, topics=[{"name": None, "topic_id": topic_id(0)}]), bytes)


def end_lease(broker: AdminBroker) -> None:
    broker.lifecycle.lease.is_valid = lambda: False


def suspect(broker: AdminBroker) -> None:
    broker.availability.suspected = {2}


def list_fenced(broker: AdminBroker) -> None:
    broker.availability.recently_fenced = {3}


def delete_topic(broker: AdminBroker) -> None:
    image = broker.metadata.image
    broker.metadata.image = dataclasses.replace(image, topics={"large": image.topics["large"]})


def fence(broker: AdminBroker) -> None:
    image = broker.metadata.image
    brokers = {**image.brokers, 2: dataclasses.replace(image.brokers[2], fenced=True)}
    broker.metadata.image = dataclasses.replace(image, brokers=brokers)


@pytest.mark.parametrize("change", [end_lease, suspect, list_fenced, delete_topic, fence])
def test_every_change_that_clients_see_makes_a_new_response(change: Callable[[AdminBroker], None]) -> None:
    broker = new_broker()
    before = body(broker)
    change(broker)
    after = body(broker)
    broker.metadata_cache = MetadataResponseCache()
    assert after == body(broker)
    assert (after != before) == (change is not suspect)


def test_a_response_is_not_kept_if_the_lease_ends_while_it_is_built() -> None:
    broker = new_broker()
    with pytest.MonkeyPatch.context() as patch:
        describe = a03_metadata._describe

        def describe_and_end_lease(*arguments: Any) -> Any:
            built = describe(*arguments)
            end_lease(broker)
            return built

        patch.setattr(a03_metadata, "_describe", describe_and_end_lease)
        body(broker)
    after = body(broker)
    broker.metadata_cache = MetadataResponseCache()
    assert after == body(broker)


def test_requests_with_other_options_get_other_responses() -> None:
    broker = new_broker()
    names: list[dict[str, Any]] = [{"name": name, "topic_id": None} for name in TOPICS]
    bodies = [
        body(broker),
        body(broker, NEWEST - 4),
        body(broker, listener="OTHERS"),
        body(broker, topics=names[:1]),
        body(broker, topics=names[::-1]),
        body(broker, include_topic_authorized_operations=True),
        body(broker, NEWEST - 3, include_cluster_authorized_operations=True),
    ]
    assert len(set(bodies)) == len(bodies)


def test_each_request_with_a_missing_topic_creates_it() -> None:
    broker = new_broker()
    created: list[list[str]] = []
    fake: Any = broker
    fake.auto_topic_creation = SimpleNamespace(create_topics=created.append)
    names: list[dict[str, Any]] = [{"name": name, "topic_id": None} for name in ("large", "missing")]
    for _ in range(2):
        assert isinstance(body(broker, topics=names), bytes)
    assert created == [["missing"], ["missing"]]


def test_equal_requests_that_were_queued_share_a_response(
    descriptions: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = new_broker()
    session = RequestContext(ClientConnection("127.0.0.1:5000", LISTENER), NEWEST, "tests")
    request = decoded_request(
        ApiKey.METADATA, NEWEST, topics=None, allow_auto_topic_creation=True, include_topic_authorized_operations=False
    )

    async def send_together() -> list[Any]:
        # The time of this iteration is spent, so all requests are queued.
        monkeypatch.setattr("moldau.server.cpu_budget.BUDGET_PER_ITERATION_S", 0.0)
        await broker.cpu_budget.run(lambda: None)
        requests = [asyncio.create_task(handle(ApiKey.METADATA, request, session, broker)) for _ in range(5)]
        await asyncio.sleep(0)
        monkeypatch.setattr("moldau.server.cpu_budget.BUDGET_PER_ITERATION_S", 1.0)
        return await asyncio.gather(*requests)

    responses = asyncio.run(send_together())
    assert len({each.body for each in responses}) == 1
    assert len(descriptions) == 1


def test_repeated_and_ignored_names_do_not_make_keys_larger(descriptions: list[object]) -> None:
    broker = new_broker()
    name: dict[str, Any] = {"name": "large", "topic_id": None}
    assert body(broker, topics=[name]) is body(broker, topics=[name] * 1_000)
    by_id = [{"name": text, "topic_id": topic_id(0)} for text in ("ignored", "too", None)]
    assert body(broker, topics=by_id) is body(broker, topics=by_id[:1])
    assert len(descriptions) == 2


def test_an_invalid_request_gets_its_error() -> None:
    names = [{"name": "large", "topic_id": None}, {"name": None, "topic_id": None}]
    response = body(new_broker(), topics=names)
    assert isinstance(response, dict)
    assert [topic["error_code"] for topic in response["topics"]] == [42, 42]


class TestCache:
    def test_the_response_that_was_not_used_for_longest_is_dropped(self) -> None:
        cache, image = MetadataResponseCache(bytes_max=10), image_of({})
        cache.put(image, "a", b"12345")
        cache.put(image, "b", b"12345")
        assert cache.get(image, "a") == b"12345"
        cache.put(image, "c", b"12345")
        assert [cache.get(image, key) for key in "abc"] == [b"12345", None, b"12345"]
        cache.put(image, "c", b"1")
        cache.put(image, "d", b"1234")
        assert [cache.get(image, key) for key in "acd"] == [b"12345", b"1", b"1234"]

    def test_a_response_that_is_too_large_is_not_kept(self) -> None:
        cache, image = MetadataResponseCache(bytes_max=10), image_of({})
        cache.put(image, "a", bytes(11))
        assert cache.get(image, "a") is None

    def test_responses_for_an_older_image_are_dropped(self) -> None:
        cache, image = MetadataResponseCache(), image_of({})
        cache.put(image, "a", b"1")
        newer = dataclasses.replace(image)
        assert cache.get(newer, "a") is None
        cache.put(newer, "b", b"2")
        assert (cache.get(image, "a"), cache.get(newer, "b")) == (None, b"2")
