"""Entry point of the `moldau` command."""

import sys


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        # Without Typer, which takes longer to import than everything that a node imports.
        from moldau.cli.serve import serve

        sys.exit(serve(sys.argv[2:]))
    from moldau.cli.commands import app
    from moldau.observe.logging import configure

    configure(level="warning")
    app()
