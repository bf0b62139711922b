"""Metrics that several clients request together are written one after the other."""

import asyncio
from typing import Any

import pytest

from moldau.http import context as context_module
from moldau.http import health_routes
from moldau.http.context import HttpContext
from moldau.http.server import HttpServer


def test_requests_for_metrics_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []

    async def render(broker: Any, pipelines: Any) -> list[bytes]:
        number = len(set(steps))
        for _ in range(3):
            steps.append(number)
            await asyncio.sleep(0)
        return [b"%d" % number]

    async def body() -> list[bytes]:
        http, context = HttpServer(), HttpContext(broker=None)  # type: ignore[arg-type]
        http._context = context

        async def render_on_a_connection_of_the_api() -> list[bytes]:
            return [bytes((await health_routes.metrics(context)).body)]

        cancelled = asyncio.create_task(http.render_metrics())
        ways = (http.render_metrics, render_on_a_connection_of_the_api, http.render_metrics)
        requests = [asyncio.create_task(way()) for way in ways]
        await asyncio.sleep(0)
        cancelled.cancel()
        return [block for blocks in await asyncio.gather(*requests) for block in blocks]

    monkeypatch.setattr(context_module, "render_metrics", render)
    assert asyncio.run(body()) == [b"1", b"2", b"3"]
    assert steps == sorted(steps)
