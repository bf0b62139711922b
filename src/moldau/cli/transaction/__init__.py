"""`moldau transaction`."""

HELP = "Find the transactions that hold back consumers, and end them."
COMMANDS = ("list", "describe", "hanging", "abort")
