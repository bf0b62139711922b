"""`moldau settings`: every setting with its default and meaning, as the page in docs."""

from pathlib import Path
from typing import Annotated

import typer


def settings(
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page to a file instead of printing it.")
    ] = None,
) -> None:
    """Print every setting with its default, its values and what it does."""
    from moldau.settings.page import settings_page

    if write is None:
        typer.echo(settings_page(), nl=False)
    else:
        write.write_text(settings_page(), encoding="utf-8")
