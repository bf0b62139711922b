"""Completion scripts in real shells, with the topics and groups of a broker."""

import asyncio
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.client import Admin, TopicPartition
from moldau.testing import Broker

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    async def fill(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            for topic in ("orders", "orders.dead", "invoices"):
                await admin.create_topic(topic)
            for group in ("billing", "team:billing", "team:audit", "with space", "evil\x1b[31m"):
                await admin.alter_group_offsets(group, {TopicPartition("orders", 0): 0})

    with Broker() as broker:
        asyncio.run(fill(broker.bootstrap))
        yield broker


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the program `moldau`."""
    directory = tmp_path_factory.mktemp("programs")
    program = directory / "moldau"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m moldau "$@"\n')
    program.chmod(0o755)
    return directory


def shell(programs: Path, broker: Broker, *command: str) -> list[str]:
    environment = {
        **os.environ,
        "MOLDAU_BOOTSTRAP": broker.bootstrap,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def bash_words(line: str) -> list[str]:
    """Splits a line as bash does for COMP_WORDS: also at : and =, which are words of their own."""
    return [part for word in line.split(" ") for part in re.findall(r"[:=]+|[^:=]+", word) or [""]]


BASH_CANDIDATES = {
    "moldau cons": ["consume"],
    "moldau consume --from-b": ["--from-beginning"],
    "moldau consume orders ord": ["orders", "orders.dead"],
    "moldau consume --group=": ["billing", "team:audit", "team:billing", r"with\ space"],
    "moldau group describe team:b": ["billing"],
    "moldau group describe team:": ["audit", "billing"],
    'moldau group describe "wi': ["with space"],
    "moldau topic create ord": [],
    "moldau produce __c": ["__consumer_offsets"],
    "moldau consume --bootstrap 127.0.0.1:1 ord": [],
    "moldau spark submit pyproject.t": ["pyproject.toml"],
}


def test_bash_completes(programs: Path, broker: Broker) -> None:
    complete = "\n".join(
        f"""
        COMP_WORDS=({shlex.join(bash_words(line))})
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _moldau "${{COMP_WORDS[0]}}" "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
        printf '%s,' "${{COMPREPLY[@]}}"; echo
        """
        for line in BASH_CANDIDATES
    )
    script = f"source <(moldau completion bash); complete -p moldau >/dev/null || exit 1\n{complete}"
    found = shell(programs, broker, "bash", "-c", script)
    assert dict(zip(BASH_CANDIDATES, found, strict=True)) == {
        line: ",".join([*expected, ""]) or "," for line, expected in BASH_CANDIDATES.items()
    }


def test_the_tab_key_completes_in_bash(programs: Path, broker: Broker) -> None:
    terminal, its_end = pty.openpty()
    environment = {
        **os.environ,
        "MOLDAU_BOOTSTRAP": broker.bootstrap,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "TERM": "dumb",
    }
    bash = subprocess.Popen(
        ["bash", "--norc", "-i"], stdin=its_end, stdout=its_end, stderr=its_end, env=environment, start_new_session=True
    )
    too_late = threading.Timer(TIMEOUT_S, bash.kill)
    too_late.start()
    shown = b""
    try:
        os.close(its_end)
        os.write(terminal, b"source <(moldau completion bash); echo lo''aded\n")
        for typed, expected in ((b"", b"loaded"), (b"moldau consume -g team:au\t", b"team:audit ")):
            os.write(terminal, typed)
            while expected not in shown:
                shown += os.read(terminal, 1_000)
    finally:
        too_late.cancel()
        bash.kill()
        bash.wait()
        os.close(terminal)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(programs: Path, broker: Broker) -> None:
    def complete(line: str) -> list[str]:
        rows = shell(programs, broker, "fish", "-N", "-c", f"moldau completion fish | source; complete -C '{line}'")
        return [row.partition("\t")[0] for row in rows]

    assert complete("moldau cons") == ["consume"]
    assert complete("moldau consume orders --group team") == ["team:audit", "team:billing"]
    assert complete("moldau consume --from-b") == ["--from-beginning"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes(programs: Path, broker: Broker) -> None:
    def complete(*words: str) -> list[str]:
        script = """
            compdef() { [[ "$*" == "_moldau moldau" ]] || print wrong $* }
            source <(moldau completion zsh)
            _describe() { print -rl -- "${(@P)3}" }
            words=("$@") CURRENT=$#
            _moldau
        """
        return shell(programs, broker, "zsh", "-f", "-c", script, "zsh", *words)

    assert complete("moldau", "cons") == ["consume:Print the records of topics"]
    assert complete("moldau", "consume", "ord") == ["orders:", "orders.dead:"]
    assert complete("moldau", "group", "describe", "team:b") == [r"team\:billing:"]
