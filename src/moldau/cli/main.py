"""`moldau`: where every command begins. Only what the command needs is imported."""

import sys


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        from moldau.cli.serve import serve

        sys.exit(serve(sys.argv[2:]))
    from moldau.cli.commands import app
    from moldau.observe.logging import configure

    # What the client could not do is told to whoever runs it, with its reason.
    configure(level="warning")
    app()
