"""Log output of exited node processes of `moldau up`."""

import asyncio
import sys
from pathlib import Path

import pytest

from moldau.cli.up.plan import NodePlan
from moldau.cli.up.processes import NodeProcess
from moldau.settings.sources import build_settings

SAID_BEFORE = "moldau: the port is in use\n"


def wait(directory: Path, program: Path) -> NodeProcess:
    node = NodePlan(1, 9092, directory, build_settings())
    node.log_file.write_text(SAID_BEFORE)

    async def run() -> NodeProcess:
        process = NodeProcess(node)
        await process.start()
        assert not await process.wait_ready()
        await process.wait()
        return process

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "executable", str(program))
        return asyncio.run(run())


def program(directory: Path, line: str) -> Path:
    made = directory / "program"
    made.write_text(f"#!/bin/sh\n{line}\n")
    made.chmod(0o755)
    return made


def test_the_last_log_line_is_of_the_current_run(tmp_path: Path) -> None:
    process = wait(tmp_path, program(tmp_path, "echo first >&2; echo 'moldau: the disk is full' >&2"))
    assert process.last_log_line() == "the disk is full"
    assert process.plan.log_file.read_text().startswith(SAID_BEFORE), "what earlier runs said is kept"


def test_log_lines_of_earlier_runs_are_ignored(tmp_path: Path) -> None:
    process = wait(tmp_path, program(tmp_path, "exit 1"))
    assert process.last_log_line() == "no log output"
