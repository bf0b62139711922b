"""`moldau completion`: prints the completion script of a shell, and computes the candidates for the script."""

import asyncio
import os
import shlex
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, Literal

import typer

from moldau.cli.command_line import Candidate, CommandLine, parse_command_line
from moldau.cli.completion_scripts import SCRIPTS
from moldau.cli.parameters import DEFAULT_BOOTSTRAP
from moldau.client.admin.admin import Admin
from moldau.client.errors import KafkaError

TIMEOUT_S = 1.5
"""How long a completion may wait for the cluster. A terminal that does not react looks broken."""
REQUEST_TIMEOUT_MS = 1_000


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands, options, topics and groups in a shell.

    Names of topics and groups come from the cluster of --bootstrap or MOLDAU_BOOTSTRAP. If no broker responds in time,
    there are none.

    In ~/.bashrc:  source <(moldau completion bash)

    In ~/.zshrc:   source <(moldau completion zsh)     (after compinit)

    In fish:       moldau completion fish > ~/.config/fish/completions/moldau.fish
    """
    typer.echo(SCRIPTS[shell], nl=False)


def complete(arguments: Sequence[str]) -> str:
    """Returns the candidates for a script. `arguments` are the shell and the words after `moldau`; the last word is
    completed.

    The first line is `values` or `files`. With `files` the shell completes a path, otherwise the other lines are the
    candidates, each with a tab and a description.
    """
    shell, *words = arguments or ["bash"]
    if shell == "bash":
        words = [_unquote(word) for word in words]
    line = parse_command_line(words or [""])
    if line.is_path:
        return "files\n"
    candidates = [each for each in _candidates(line) if each.value.startswith(line.prefix)]
    rows = [f"{line.before}{each.value}\t{each.help}\n" for each in candidates if each.value.isprintable()]
    return "".join(["values\n", *rows])


def _unquote(word: str) -> str:
    """Returns a word as the shell would pass it to a program. The quotes of the last word may still be open."""
    for closing in ("", "'", '"'):
        try:
            return "".join(shlex.split(word + closing))
        except ValueError:
            continue
    return word


def _candidates(line: CommandLine) -> list[Candidate]:
    names = _CLUSTER_NAMES.get(line.metavar)
    if names is None or line.creates:
        return list(line.candidates)
    return [*line.candidates, *(Candidate(name) for name in _fetch_names(line, names))]


def _fetch_names(line: CommandLine, names: Callable[[Admin, str], Coroutine[Any, Any, list[str]]]) -> list[str]:
    """Returns names from the cluster; none if it cannot be reached in time, because a completion must not fail."""
    bootstrap = line.bootstrap or os.environ.get("MOLDAU_BOOTSTRAP") or DEFAULT_BOOTSTRAP

    async def run() -> list[str]:
        async with asyncio.timeout(TIMEOUT_S):
            async with Admin(bootstrap, timeout_ms=REQUEST_TIMEOUT_MS, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
                return await names(admin, line.prefix)

    try:
        return asyncio.run(run())
    except (KafkaError, OSError, TimeoutError, ValueError):
        return []


async def _topics(admin: Admin, prefix: str) -> list[str]:
    return [topic.name for topic in await admin.list_topics(internal=prefix.startswith("_"))]


async def _groups(admin: Admin, _: str) -> list[str]:
    return sorted(group.group_id for group in await admin.list_groups())


async def _transactional_ids(admin: Admin, _: str) -> list[str]:
    return sorted(each.transactional_id for each in await admin.list_transactions())


_CLUSTER_NAMES: dict[str, Callable[[Admin, str], Coroutine[Any, Any, list[str]]]] = {
    "TOPIC": _topics,
    "GROUP": _groups,
    "TRANSACTIONAL_ID": _transactional_ids,
}
"""What to fetch for parameters with these metavars."""
