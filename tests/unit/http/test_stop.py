"""Work of the HTTP API when the node stops."""

import asyncio
from typing import Any

import pytest

from moldau.http.context import HttpContext
from moldau.http.errors import HttpError
from moldau.http.v1.state import V1State


async def run_until_stopping(grace_s: float) -> str:
    """Stops the node during work that then takes another 50 ms. Returns the result of the work."""
    unused: Any = None
    context = HttpContext(unused)
    state = V1State(context, unused, unused)

    async def work() -> str:
        context.stopping.set()
        await asyncio.sleep(0.05)
        return "acknowledged"

    return await state.until_stopping(work(), grace_s)


def test_records_in_flight_are_acknowledged_although_the_node_stops() -> None:
    assert asyncio.run(run_until_stopping(10)) == "acknowledged"


@pytest.mark.parametrize("grace_s", [0, 0.001])
def test_work_that_takes_longer_gets_503(grace_s: float) -> None:
    with pytest.raises(HttpError) as caught:
        asyncio.run(run_until_stopping(grace_s))
    assert caught.value.status == 503
