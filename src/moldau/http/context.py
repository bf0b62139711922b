"""What the handlers of the HTTP API receive: the node's components and the state of the HTTP server."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from moldau.http.node_metrics import render_metrics
from moldau.http.pipeline_metrics import PipelineReports
from moldau.server.api import Broker


@dataclass(slots=True, eq=False)
class HttpContext:
    broker: Broker
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the node stops. Streams and long polls end then."""
    unexpected_errors: int = 0
    """The number of requests that failed with an unexpected exception."""
    received_bytes: int = 0
    """The size of the bodies of all requests in progress."""

    pipeline_reports: PipelineReports = field(default_factory=PipelineReports)
    metrics_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while metrics are written: together, requests would block the event loop for one slice each."""

    close_callbacks: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Called when the node stops and all HTTP connections are closed."""

    @property
    def request_bytes_max(self) -> int:
        return self.broker.settings.broker.http_request_max_bytes

    async def render_metrics(self) -> list[bytes]:
        """Writes the metrics in blocks, for one request at a time."""
        async with self.metrics_lock:
            return await render_metrics(self.broker, self.pipeline_reports)
