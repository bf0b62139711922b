"""The admin client against a scripted broker."""

import asyncio
from collections.abc import Callable

import pytest

from moldau.client.admin.admin import Admin
from moldau.client.errors import ErrorCode, KafkaError
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
def test_a_new_topic_notifies_the_listeners(before: list[Callable[[ReceivedRequest], ScriptedResponse]]) -> None:
    with pytest.raises(KafkaError) as told:
        delete(*before, deleted(ErrorCode.unknown_topic_or_partition))
    assert told.value.code is ErrorCode.unknown_topic_or_partition
