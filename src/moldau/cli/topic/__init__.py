"""`moldau topic`."""

HELP = "Create, describe, change, move, trim and delete topics."
COMMANDS = ("list", "create", "describe", "configs", "alter", "move", "trim", "delete")
