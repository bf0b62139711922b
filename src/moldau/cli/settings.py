"""`moldau settings`: prints the settings reference."""

from pathlib import Path
from typing import Annotated

import typer


def settings(
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to a file instead of standard output.")
    ] = None,
) -> None:
    """Print all settings with default, allowed values and description."""
    from moldau.settings.docs_page import settings_page

    if write is None:
        typer.echo(settings_page(), nl=False)
    else:
        write.write_text(settings_page(), encoding="utf-8")
