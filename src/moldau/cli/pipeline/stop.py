"""`moldau pipeline stop`: stops a running pipeline and waits until it has stopped."""

import os
import signal
import socket
import time
from contextlib import suppress
from typing import Annotated

import typer

from moldau.cli.console import CommandError, out_console, print_notice
from moldau.cli.pipeline.parameters import Name, State, find_run
from moldau.cli.spark.parameters import exit_on_error
from moldau.pipelines.runtime.state_directory import RunRecord, StateDirectory

POLL_S = 0.1
NOTICE_INTERVAL_S = 5.0


def pipeline_stop(
    name: Name,
    state: State = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, metavar="SECONDS", help="How long to wait for it to stop.")
    ] = 90.0,
) -> None:
    """Stop a pipeline that runs on this machine; it finishes the current batch.

    moldau pipeline stop revenue
    """
    with exit_on_error():
        directory, record = find_run(name, state)
        if not directory.is_locked():
            out_console.print(f"{directory.name} is not running.", markup=False)
            return
        _send_stop_signal(record)
        out_console.print(f"{directory.name}: stopping process {record.pid} ...", markup=False)
        _wait_until_stopped(directory, record, timeout)
        out_console.print(f"{directory.name} is stopped.", markup=False)


def _send_stop_signal(record: RunRecord) -> None:
    """Sends SIGTERM to the run. Raises CommandError if the run is on another host, or its process no longer exists."""
    if record.host != socket.gethostname():
        raise CommandError(f"{record.name} is running on {record.host}: stop it there.")
    if not record.is_process_alive():
        raise CommandError(
            f"{record.name} is locked, but not by process {record.pid} of its last run. "
            "It may be starting: try again in a moment."
        )
    with suppress(ProcessLookupError):
        os.kill(record.pid, signal.SIGTERM)


def _wait_until_stopped(directory: StateDirectory, record: RunRecord, timeout_s: float) -> None:
    start = time.monotonic()
    next_notice_s = start + NOTICE_INTERVAL_S
    while directory.is_locked():
        now = time.monotonic()
        if now - start >= timeout_s:
            raise CommandError(
                f"{record.name} has not stopped within {timeout_s:g} s because its batch is not finished. Use a longer "
                f"--timeout, or run `kill {record.pid}` to abort the batch, which the next run repeats."
            )
        if now >= next_notice_s:
            print_notice(f"waiting for the current batch ... {now - start:.0f} s")
            next_notice_s += NOTICE_INTERVAL_S
        time.sleep(POLL_S)
