"""Metrics that several clients request together are written one after the other."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.http import server
from moldau.http.server import HttpServer


def test_requests_for_metrics_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []

    async def render(broker: Any, pipelines: Any) -> list[bytes]:
        number = len(set(steps))
        for _ in range(3):
            steps.append(number)
            await asyncio.sleep(0)
        return [b"%d" % number]

    async def body() -> list[list[bytes]]:
        http = HttpServer()
        http._context = SimpleNamespace(broker=None, pipeline_reports=None)  # type: ignore[assignment]
        cancelled = asyncio.create_task(http.render_metrics())
        requests = [asyncio.create_task(http.render_metrics()) for _ in range(3)]
        await asyncio.sleep(0)
        cancelled.cancel()
        return await asyncio.gather(*requests)

    monkeypatch.setattr(server, "render_metrics", render)
    assert asyncio.run(body()) == [[b"1"], [b"2"], [b"3"]]
    assert steps == sorted(steps)
