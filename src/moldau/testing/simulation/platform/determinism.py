"""Guards that keep a simulated run deterministic: calls that leave the simulation raise DeterminismError."""

import asyncio
import contextlib
import gc
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NoReturn
from unittest import mock

FORBIDDEN_LOOP_METHODS = (
    *("add_reader", "remove_reader", "add_writer", "remove_writer"),
    *("add_signal_handler", "remove_signal_handler"),
    *("connect_accepted_socket", "connect_read_pipe", "connect_write_pipe", "create_datagram_endpoint"),
    *("create_unix_connection", "create_unix_server", "getaddrinfo", "getnameinfo"),
    *("run_in_executor", "set_default_executor", "set_task_factory", "sendfile", "start_tls"),
    *("sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into"),
    *("sock_sendall", "sock_sendfile", "sock_sendto", "subprocess_exec", "subprocess_shell"),
)
FORBIDDEN_CALLS: tuple[tuple[Any, str], ...] = (
    (os, "urandom"),
    (uuid, "uuid1"),
    (uuid, "uuid4"),
    (time, "sleep"),
    (threading.Thread, "start"),
)
"""Sources of randomness and of real time that no seed controls."""


class DeterminismError(NotImplementedError):
    """Code under simulation used something that the seed does not control."""


def _forbidden(name: str) -> Callable[..., NoReturn]:
    def forbidden(*args: object, **options: object) -> NoReturn:
        raise DeterminismError(f"{name} would leave the simulation: take it from the node's Platform instead")

    return forbidden


class DeterministicLoop(asyncio.AbstractEventLoop):
    """Base of the simulated loop: its methods for threads, sockets and signals raise DeterminismError."""


for _name in FORBIDDEN_LOOP_METHODS:
    setattr(DeterministicLoop, _name, _forbidden(f"loop.{_name}"))


@contextlib.contextmanager
def forbid_nondeterminism() -> Iterator[None]:
    """Makes forbidden calls raise DeterminismError. Disables automatic garbage collection, which would break replay.

    Objects from before are frozen, so that collections of the simulation do not visit them. If a caller such as a test
    run has frozen its objects already, they stay frozen.
    """
    was_collecting = gc.isenabled()
    is_frozen = gc.get_freeze_count() > 0
    gc.collect()
    if not is_frozen:
        gc.freeze()
    gc.disable()
    try:
        with ExitStack() as stack:
            for owner, name in FORBIDDEN_CALLS:
                stack.enter_context(mock.patch.object(owner, name, _forbidden(f"{owner.__name__}.{name}")))
            yield
    finally:
        if not is_frozen:
            gc.unfreeze()
        if was_collecting:
            gc.enable()
