"""`moldau version`: which Moldau this is, and on what."""

import typer


def version() -> None:
    """Print the version of Moldau and of the Python it runs on."""
    import platform

    from moldau import __version__

    typer.echo(f"moldau {__version__} (Python {platform.python_version()}, {platform.system()})")


def print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit
