"""A limit on the time that a step of a test takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails the test if the block takes longer."""
    began = time.monotonic()
    yield
    taken_s = time.monotonic() - began
    assert taken_s < seconds, f"it took {taken_s:.1f} s"
