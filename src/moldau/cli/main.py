"""Entry point of the `moldau` command."""

import sys


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        # `serve` does not use Typer, because importing Typer takes longer than all other imports of a node together.
        from moldau.cli.serve import serve

        sys.exit(serve(sys.argv[2:]))
    from moldau.cli.commands import app
    from moldau.observe.logging import configure

    configure(level="warning")
    app()
