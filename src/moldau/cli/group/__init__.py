"""`moldau group`."""

HELP = "Describe consumer groups, reset their offsets, and delete them."
COMMANDS = ("list", "describe", "members", "reset", "delete")
