"""The admin client against a broker whose every answer the test writes."""

import asyncio
from collections.abc import Callable

import pytest

from moldau.client.admin.admin import Admin
from moldau.client.errors import ErrorCode, KafkaError
from moldau.wire.api_keys import ApiKey
from support.scripted_broker import Answer, Asked, HangUp, ScriptedBroker

DEADLINE_S = 20


def deleted(code: ErrorCode) -> Callable[[Asked], Answer]:
    def answer(asked: Asked) -> Answer:
        responses = [
            {"name": each.name, "topic_id": None, "error_code": int(code), "error_message": None}
            for each in asked.request.topics
        ]
        return {"throttle_time": 0, "responses": responses}

    return answer


def delete(*answers: Callable[[Asked], Answer]) -> None:
    left = iter(answers)

    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_S),
            ScriptedBroker({ApiKey.DELETE_TOPICS: lambda asked: next(left)(asked)}) as broker,
            Admin(broker.bootstrap, retry_backoff_ms=1) as admin,
        ):
            await admin.delete_topic("orders")

    asyncio.run(main())


@pytest.mark.parametrize("in_doubt", [lambda _: HangUp, deleted(ErrorCode.request_timed_out)])
def test_a_topic_that_an_attempt_in_doubt_may_have_deleted_is_deleted_if_it_is_not_there(
    in_doubt: Callable[[Asked], Answer],
) -> None:
    delete(in_doubt, deleted(ErrorCode.unknown_topic_or_partition))


@pytest.mark.parametrize("before", [[], [deleted(ErrorCode.not_controller)]])
def test_a_topic_that_was_not_there_before_is_told_of(before: list[Callable[[Asked], Answer]]) -> None:
    with pytest.raises(KafkaError) as told:
        delete(*before, deleted(ErrorCode.unknown_topic_or_partition))
    assert told.value.code is ErrorCode.unknown_topic_or_partition
