"""schemathesis generates requests from the OpenAPI documents, valid and invalid ones, and sends them to a node.

No response has a 5xx status other than 503 and 504, and every response is as its document says. MOLDAU_HTTP_FUZZ sets
the number of examples (3).
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from moldau.testing.broker import Broker

EXAMPLES = int(os.environ.get("MOLDAU_HTTP_FUZZ", "3"))
"""For each operation: valid and invalid requests, to generated paths and to existing objects."""
WAIT_MS_MAX = 20
"""Long polls and streams are shortened, so that the test ends."""
PARTITIONS_MAX = 20
"""Valid partition counts are lowered, so that the node stays small."""
SUCCESSFUL_OPERATIONS_MIN = 20
"""So many operations must succeed at least once, or the test would only prove that the node rejects requests."""
EXPECTED_ERRORS = (503, 504)
CONFORMANCE = [status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def http_url() -> Iterator[str]:
    with Broker(settings={"http.port": "0"}) as broker:
        yield f"http://{broker.node.http_address}"


def load_operations(url: str) -> list[tuple[str, Any]]:
    """Returns all operations, each with the URL that its path is relative to."""
    operations = []
    for base in (url, f"{url}/v1"):
        # schemathesis itself waits 10 s only, and the first request loads the API.
        document = httpx.get(f"{base}/openapi.json", timeout=60).raise_for_status().json()
        schema = schemathesis.openapi.from_dict(document)
        operations += [(base, each.ok()) for each in schema.get_all_operations()]
    return operations


class ExistingObjects:
    """The objects that paths refer to. They are created again when a request has deleted them."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._consumer_id = ""

    def path_parameters(self) -> dict[str, Any]:
        if self._client.get("/v1/topics/orders").status_code == 404:
            self._client.post("/v1/topics", json={"name": "orders", "partitions": 2}).raise_for_status()
            header = {"name": "h", "value": {"text": "v"}}
            records = [{"key": {"text": "k"}, "value": {"json": [1, None]}, "headers": [header]}, {}]
            self._client.post("/v1/topics/orders/records", json={"records": records}).raise_for_status()
        consumers = "/v1/groups/billing/consumers"
        if self._client.get(f"{consumers}/{self._consumer_id or 'none'}").status_code == 404:
            created = self._client.post(consumers, json={"topics": ["orders"]}).raise_for_status()
            self._consumer_id = created.json()["consumer_id"]
            poll = f"{consumers}/{self._consumer_id}/poll"
            self._client.post(poll, params={"wait_ms": 2_000}).raise_for_status()
        return {
            "topic": "orders",
            "topic_name": "orders",
            "group": "billing",
            "consumer_id": self._consumer_id,
            "partition": 0,
            "broker_id": 1,
        }


def bound(case: Any) -> None:
    """Shortens waits and lowers partition counts if they are valid."""
    waits = {"records": "wait_ms", "poll": "wait_ms", "stream": "timeout_ms"}
    parameter = waits.get(case.path.rpartition("/")[2])
    if parameter is not None and any(each.name == parameter for each in case.operation.query):
        query = case.query if isinstance(case.query, dict) else {}
        value = query.get(parameter, WAIT_MS_MAX)
        if isinstance(value, int):
            value = min(value, WAIT_MS_MAX)
        case.query = {**query, parameter: WAIT_MS_MAX if value is None else value}
    for field in ("partitions", "count", "partition_count"):
        if isinstance(case.body, dict) and isinstance(case.body.get(field), int):
            case.body[field] = min(case.body[field], PARTITIONS_MAX)


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_no_generated_request_fails_unexpectedly(http_url: str, mode: str) -> None:
    statuses: dict[str, Counter[int]] = {}
    with httpx.Client(base_url=http_url, timeout=60) as client:
        existing = ExistingObjects(client)
        for base, operation in load_operations(http_url):
            seen = statuses.setdefault(f"{operation.method.upper()} {base}{operation.path}", Counter())
            for parameters in ({}, existing.path_parameters()):
                seen.update(send_examples(operation, base, mode, parameters))
    total = sum(statuses.values(), Counter())
    shown = ", ".join(f"{status}: {count}" for status, count in sorted(total.items()))
    print(f"\n{total.total()} requests ({mode}) to {len(statuses)} operations, by status {shown}")
    if mode == "positive":
        successful = [name for name, seen in statuses.items() if min(seen) < 400]
        assert len(successful) >= SUCCESSFUL_OPERATIONS_MIN, statuses


def send_examples(operation: Any, url: str, mode: str, parameters: dict[str, Any]) -> list[int]:
    """Sends generated requests with these parameters in their path. Returns the statuses."""
    statuses: list[int] = []

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=getattr(schemathesis.GenerationMode, mode.upper())))
    def send(case: Any) -> None:
        for name in case.path_parameters or {}:
            if name in parameters:
                case.path_parameters[name] = parameters[name]
        bound(case)
        response = case.call(base_url=url, timeout=60)
        statuses.append(response.status_code)
        if response.status_code not in EXPECTED_ERRORS:
            case.validate_response(response, checks=[not_a_server_error, *CONFORMANCE])

    # An operation without parameters and body has no invalid requests.
    with suppress(Unsatisfiable):
        send()
    return statuses
