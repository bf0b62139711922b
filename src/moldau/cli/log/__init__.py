"""`moldau log`."""

HELP = "Inspect segments, indexes and the metadata log offline."
COMMANDS = ("dump", "verify")
