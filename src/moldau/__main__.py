"""`python -m moldau` is `moldau`."""

from moldau.cli.main import main

main()
