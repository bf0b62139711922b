"""`moldau group`."""

HELP = "Describe consumer groups and their lag, reset their offsets, and delete them."
COMMANDS = ("list", "describe", "lag", "members", "reset", "delete")
