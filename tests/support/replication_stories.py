"""Runs replication tests with a timeout."""

import asyncio
from collections.abc import Coroutine
from typing import Any

PATIENCE_S = 20


def run(test: "Coroutine[Any, Any, None]") -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))
