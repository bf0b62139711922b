"""Entry point of `python -m moldau`."""

from moldau.cli.main import main

main()
