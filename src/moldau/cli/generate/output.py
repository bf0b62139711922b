"""Output of generated files: to standard output or to a file."""

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.console import CommandError, print_error, print_notice

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file instead of standard output.")
]


def write_output(text: str, path: Path | None) -> None:
    """Writes the text. Exits with code 1 if the file cannot be written."""
    if path is None:
        typer.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        print_error(CommandError(f"{path}: {error.strerror or error}"))
        raise typer.Exit(1) from None
    print_notice(f"Wrote {path}.")


def write_file_of(directory: Path, name: str, text: str) -> None:
    """Writes a file of a directory, which is created if it is missing."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print_error(CommandError(f"{directory}: {error.strerror or error}"))
        raise typer.Exit(1) from None
    write_output(text, directory / name)


def validate_addresses(values: list[str] | None) -> list[str] | None:
    """Raises BadParameter if a value is not HOST:PORT."""
    for each in values or ():
        host, colon, port = each.rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65_536
        if not colon or not host or not is_port or "/" in host or any(character.isspace() for character in each):
            raise typer.BadParameter(f"{each!r} is not HOST:PORT, for example broker-1:8001")
    return values
