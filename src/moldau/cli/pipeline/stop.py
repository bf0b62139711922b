"""`moldau pipeline stop`: asks a running pipeline to end, and waits until it has."""

import os
import signal
import socket
import time
from contextlib import suppress
from typing import Annotated

import typer

from moldau.cli.cluster_access import CommandError, out_console, print_notice
from moldau.cli.pipeline.parameters import Name, State, find_run
from moldau.cli.spark.parameters import exit_on_error
from moldau.pipelines.runtime.state_directory import RunRecord, StateDirectory

POLL_S = 0.1
NOTICE_INTERVAL_S = 5.0


def pipeline_stop(
    name: Name,
    state: State = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, metavar="SECONDS", help="How long to wait for its end.")
    ] = 90.0,
) -> None:
    """Stop a pipeline that runs on this machine: it finishes the batch that is under way.

    moldau pipeline stop revenue
    """
    with exit_on_error():
        directory, record = find_run(name, state)
        if not directory.is_locked():
            out_console.print(f"{directory.name} is not running.", markup=False)
            return
        _send_stop_signal(record)
        out_console.print(f"{directory.name}: process {record.pid} is asked to stop ...", markup=False)
        _wait_until_stopped(directory, record, timeout)
        out_console.print(f"{directory.name} is stopped.", markup=False)


def _send_stop_signal(record: RunRecord) -> None:
    """Raises CommandError where the process is not the one that was started: its number may have been used again."""
    if record.host != socket.gethostname():
        raise CommandError(f"{record.name} runs on {record.host}: stop it there.")
    if not record.is_process_alive():
        raise CommandError(
            f"{record.name} is locked, but process {record.pid} is not the one that runs it. "
            "It may be starting just now: try again in a moment."
        )
    with suppress(ProcessLookupError):
        os.kill(record.pid, signal.SIGTERM)


def _wait_until_stopped(directory: StateDirectory, record: RunRecord, timeout_s: float) -> None:
    start = time.monotonic()
    next_word = start + NOTICE_INTERVAL_S
    while directory.is_locked():
        now = time.monotonic()
        if now - start >= timeout_s:
            raise CommandError(
                f"{record.name} has not stopped within {timeout_s:g} s: it still finishes a batch. Wait with "
                f"a longer --timeout, or end it with `kill {record.pid}`, which makes it leave the batch undone "
                "(the next run does it again)."
            )
        if now >= next_word:
            print_notice(f"waiting for the batch that is under way ... {now - start:.0f} s")
            next_word += NOTICE_INTERVAL_S
        time.sleep(POLL_S)
