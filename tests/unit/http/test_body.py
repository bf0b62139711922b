"""Bodies with very many values: other work of the node runs in between, and only few errors are described."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from moldau.http import body
from moldau.http.body import ERRORS_MAX, ITEMS_AT_ONCE, RequestBody, json_body
from moldau.http.errors import HttpError
from moldau.http.v1.consumers import CommitBody
from moldau.http.v1.reassignments import AlterReassignmentsBody
from moldau.http.v1.records import PRODUCED_RECORDS_MAX, ProduceRecordsBody
from moldau.http.v1.topics import CreateTopicBody
from moldau.server import cpu_budget
from moldau.server.cpu_budget import CpuBudget

RECORD = {"key": {"text": "k"}, "value": {"json": [1]}, "headers": [{"name": "h", "value": {"base64": "AA=="}}]}


def parse(tree: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[ProduceRecordsBody, int]:
    """Returns the body and in how many iterations of the event loop it was parsed, with one step in each."""

    async def read_body(request: Any) -> bytes:
        return json.dumps(tree).encode()

    async def run() -> tuple[ProduceRecordsBody, int]:
        context = SimpleNamespace(broker=SimpleNamespace(cpu_budget=CpuBudget()))
        monkeypatch.setattr(body, "context_of", lambda request: context)
        iterations, loop = 0, asyncio.get_running_loop()

        def count() -> None:
            nonlocal iterations
            iterations += 1
            loop.call_soon(count)

        loop.call_soon(count)
        return await json_body(ProduceRecordsBody, items="records")(None), iterations  # type: ignore[arg-type]

    monkeypatch.setattr(body, "read_body", read_body)
    monkeypatch.setattr(cpu_budget, "BUDGET_PER_ITERATION_S", 0)
    return asyncio.run(run())


@pytest.mark.parametrize("count", [1, ITEMS_AT_ONCE, ITEMS_AT_ONCE + 1, 200])
def test_many_records_are_validated_one_by_one(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, iterations = parse({"records": [RECORD] * count, "acks": 1}, monkeypatch)
    assert parsed == ProduceRecordsBody.model_validate({"records": [RECORD] * count, "acks": 1})
    assert (iterations >= count) == (count > ITEMS_AT_ONCE or count == 1)


def test_the_first_invalid_record_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [RECORD] * 50 + [{"valeu": None}] * 50
    with pytest.raises(RequestValidationError) as caught:
        parse({"records": records}, monkeypatch)
    assert [each["loc"] for each in caught.value.errors()] == [("body", "records", 50, "valeu")]


def test_too_many_records_are_rejected_before_they_are_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestValidationError) as caught:
        parse({"records": [1] * (PRODUCED_RECORDS_MAX + 1)}, monkeypatch)
    [error] = caught.value.errors()
    assert (error["loc"], error["type"]) == (("body", "records"), "too_long")


def test_too_many_values_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HttpError) as caught:
        parse({"records": [[1] * (body.JSON_VALUES_MAX + 1)]}, monkeypatch)
    assert caught.value.status == 413
    assert parse({"records": [{"value": {"text": ",[{" * body.JSON_VALUES_MAX}}]}, monkeypatch)


UNKNOWN = {f"unknown{index}": 1 for index in range(1_000)}


@pytest.mark.parametrize(
    ("model", "tree"),
    [
        (ProduceRecordsBody, {"records": [UNKNOWN]}),
        (ProduceRecordsBody, {"records": [{"value": {"text": "x"} | UNKNOWN}]}),
        (ProduceRecordsBody, {"records": [{"headers": [{"name": "h"} | UNKNOWN]}]}),
        (ProduceRecordsBody, {"records": [{"headers": [1] * 1_000}]}),
        (CommitBody, {"offsets": [1] * 1_000}),
        (AlterReassignmentsBody, {"partitions": [1] * 1_000}),
        (AlterReassignmentsBody, {"partitions": [{"topic": "t", "partition": 0, "replicas": ["x"] * 1_000}]}),
        (CreateTopicBody, {"name": "t", "configs": UNKNOWN}),
        (CreateTopicBody, {"name": "t"} | UNKNOWN),
    ],
)
def test_few_of_very_many_errors_are_described(model: type[RequestBody], tree: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(tree)
    assert 1 <= caught.value.error_count() <= ERRORS_MAX
