"""The admin client against a scripted broker."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from moldau.client.admin.admin import Admin
from moldau.client.admin.types import CreatedTopic
from moldau.client.errors import ErrorCode, KafkaError, RequestTimedOutError
from moldau.wire.api_keys import ApiKey
from support.scripted_broker import Disconnect, ReceivedRequest, ScriptedBroker, ScriptedResponse

DEADLINE_S = 20


def deleted(code: ErrorCode) -> Callable[[ReceivedRequest], ScriptedResponse]:
    def answer(received: ReceivedRequest) -> ScriptedResponse:
        responses = [
            {"name": each.name, "topic_id": None, "error_code": int(code), "error_message": None}
            for each in received.request.topics
        ]
        return {"throttle_time": 0, "responses": responses}

    return answer


def delete(*answers: Callable[[ReceivedRequest], ScriptedResponse]) -> None:
    left = iter(answers)

    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_S),
            ScriptedBroker({ApiKey.DELETE_TOPICS: lambda received: next(left)(received)}) as broker,
            Admin(broker.bootstrap, retry_backoff_ms=1) as admin,
        ):
            await admin.delete_topic("orders")

    asyncio.run(main())


@pytest.mark.parametrize("in_doubt", [lambda _: Disconnect, deleted(ErrorCode.request_timed_out)])
def test_an_unknown_topic_after_a_lost_delete_response_counts_as_deleted(
    in_doubt: Callable[[ReceivedRequest], ScriptedResponse],
) -> None:
    delete(in_doubt, deleted(ErrorCode.unknown_topic_or_partition))


@pytest.mark.parametrize("before", [[], [deleted(ErrorCode.not_controller)]])
def test_a_topic_that_never_existed_is_not_deleted(before: list[Callable[[ReceivedRequest], ScriptedResponse]]) -> None:
    with pytest.raises(KafkaError) as told:
        delete(*before, deleted(ErrorCode.unknown_topic_or_partition))
    assert told.value.code is ErrorCode.unknown_topic_or_partition


def created(code: ErrorCode) -> Callable[[ReceivedRequest], ScriptedResponse]:
    def answer(received: ReceivedRequest) -> ScriptedResponse:
        topics = [
            {
                "name": each.name,
                "topic_id": UUID(int=7),
                "error_code": int(code),
                "error_message": None,
                "num_partitions": each.num_partitions,
                "replication_factor": each.replication_factor,
                "configs": [],
            }
            for each in received.request.topics
        ]
        return {"throttle_time": 0, "topics": topics}

    return answer


def create(*answers: Callable[[ReceivedRequest], ScriptedResponse], partitions: int = 4) -> CreatedTopic:
    """Creates a topic. The broker has one of this name with four partitions."""
    left = iter(answers)

    async def main() -> CreatedTopic:
        async with (
            asyncio.timeout(DEADLINE_S),
            ScriptedBroker(
                {ApiKey.CREATE_TOPICS: lambda received: next(left)(received)}, topics={"orders": 4}
            ) as broker,
            Admin(broker.bootstrap, retry_backoff_ms=1) as admin,
        ):
            return await admin.create_topic("orders", partitions=partitions, replication_factor=1)

    return asyncio.run(main())


@pytest.mark.parametrize("in_doubt", [lambda _: Disconnect, created(ErrorCode.request_timed_out)])
def test_a_topic_that_exists_after_a_lost_create_response_counts_as_created(
    in_doubt: Callable[[ReceivedRequest], ScriptedResponse],
) -> None:
    topic = create(in_doubt, created(ErrorCode.topic_already_exists))
    assert (topic.name, topic.partitions, topic.replication_factor) == ("orders", 4, 1)


@pytest.mark.parametrize("before", [[], [created(ErrorCode.not_controller)]])
def test_a_topic_that_existed_before_is_not_created(
    before: list[Callable[[ReceivedRequest], ScriptedResponse]],
) -> None:
    with pytest.raises(KafkaError) as refused:
        create(*before, created(ErrorCode.topic_already_exists))
    assert refused.value.code is ErrorCode.topic_already_exists


def test_an_older_topic_after_a_lost_create_response_is_not_created() -> None:
    with pytest.raises(KafkaError) as refused:
        create(lambda _: Disconnect, created(ErrorCode.topic_already_exists), partitions=12)
    assert refused.value.code is ErrorCode.topic_already_exists


def test_a_topic_whose_logs_could_not_be_opened_is_not_created_again() -> None:
    with pytest.raises(KafkaError) as refused:
        create(created(ErrorCode.kafka_storage_error))
    assert refused.value.code is ErrorCode.kafka_storage_error


def test_a_list_does_not_wait_for_a_broker_that_has_left() -> None:
    """Its groups are those of the other brokers by then, so these are queried again."""
    listed = 0

    def groups(_: ReceivedRequest) -> ScriptedResponse:
        nonlocal listed
        listed += 1
        names = ["moved", "stays"] if listed > 1 else ["stays"]
        group = {"protocol_type": "", "group_state": "Empty", "group_type": "classic"}
        return {"groups": [{"group_id": name, **group} for name in names]}

    async def main() -> list[str]:
        async with asyncio.timeout(DEADLINE_S), ScriptedBroker({ApiKey.LIST_GROUPS: groups}) as broker:
            metadata = broker.scripts[ApiKey.METADATA]

            def with_dead_broker(received: ReceivedRequest) -> ScriptedResponse:
                response = metadata(received)
                assert isinstance(response, dict)
                if not listed:
                    response["brokers"].append({"node_id": 8, "host": "127.0.0.1", "port": 1})
                return response

            broker.scripts[ApiKey.METADATA] = with_dead_broker
            async with Admin(broker.bootstrap, retry_backoff_ms=1, timeout_ms=5_000) as admin:
                return [each.group_id for each in await admin.list_groups()]

    assert asyncio.run(main()) == ["moved", "stays"]


def test_a_list_that_times_out_reports_the_last_cause() -> None:
    """The last attempt has almost no time left, so its own error would only say that a millisecond was too short."""

    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_S),
            ScriptedBroker() as broker,
            Admin(broker.bootstrap, retry_backoff_ms=1, timeout_ms=200) as admin,
        ):
            causes = iter([KafkaError(ErrorCode.coordinator_load_in_progress, "node 8 is starting")])

            async def refresh(*, timeout_ms: int) -> None:
                raise next(causes, RequestTimedOutError(f"no broker returned metadata within {timeout_ms} ms"))

            admin.cluster.refresh = refresh  # type: ignore[assignment, method-assign]
            with pytest.raises(KafkaError, match="node 8 is starting"):
                await admin.list_groups()

    asyncio.run(main())
