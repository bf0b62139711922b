"""`moldau version`."""

import typer


def version() -> None:
    """Print the versions of Moldau and Python."""
    import platform

    from moldau import __version__

    typer.echo(f"moldau {__version__} (Python {platform.python_version()}, {platform.system()})")


def print_version(is_requested: bool) -> None:
    if is_requested:
        version()
        raise typer.Exit
