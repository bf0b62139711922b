"""`moldau topic`."""

HELP = "Create, describe, change and delete topics."
COMMANDS = ("list", "create", "describe", "alter", "delete")
