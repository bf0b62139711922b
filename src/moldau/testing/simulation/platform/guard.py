"""Keeps a simulated run from drawing on what no seed controls: real randomness, threads, sleeping."""

import contextlib
import gc
import os
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any, NoReturn

from moldau.testing.simulation.platform.determinism import DeterminismError

FORBIDDEN: tuple[tuple[Any, str], ...] = (
    (os, "urandom"),
    (uuid, "uuid1"),
    (uuid, "uuid4"),
    (time, "sleep"),
    (threading.Thread, "start"),
)


@contextlib.contextmanager
def forbid_nondeterminism() -> Iterator[None]:
    """Within it these raise, and garbage is collected only on demand: finalizers at random break replay."""
    kept = [(owner, name, getattr(owner, name)) for owner, name in FORBIDDEN]
    collecting = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    for owner, name, _ in kept:
        setattr(owner, name, _forbidden(f"{owner.__name__}.{name}"))
    try:
        yield
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)
        gc.unfreeze()
        if collecting:
            gc.enable()


def _forbidden(name: str) -> Any:
    def refused(*args: object, **options: object) -> NoReturn:
        raise DeterminismError(f"{name} is outside the simulation; a node takes such things from its world")

    return refused
