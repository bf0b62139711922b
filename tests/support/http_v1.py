"""A broker with its HTTP API, and a client for `/v1`."""

from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from moldau.testing.broker import Broker


class HttpBroker(NamedTuple):
    bootstrap: str
    api: httpx.Client


@contextmanager
def http_broker(
    topics: Mapping[str, int] | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[HttpBroker]:
    with Broker(topics or {}, {"http.port": "0", **(settings or {})}) as broker:
        url = f"http://{broker.node.http_address}/v1"
        with httpx.Client(base_url=url, timeout=60) as api:
            yield HttpBroker(broker.bootstrap, api)


def base64(data: bytes | None) -> dict[str, str] | None:
    return None if data is None else {"base64": b64encode(data).decode()}


def produce(api: httpx.Client, topic: str, *records: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """Produces records and returns their results."""
    response = api.post(f"/topics/{topic}/records", json={"records": list(records), **fields})
    assert response.status_code == 200, response.text
    results: list[dict[str, Any]] = response.json()["records"]
    return results


def consume(api: httpx.Client, topic: str, partition: int = 0, **parameters: Any) -> dict[str, Any]:
    response = api.get(f"/topics/{topic}/partitions/{partition}/records", params=parameters)
    assert response.status_code == 200, response.text
    consumed: dict[str, Any] = response.json()
    return consumed


def error_code(response: httpx.Response, status: int) -> str:
    """Returns the code of an error response."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["message"]
    return str(error["code"])
