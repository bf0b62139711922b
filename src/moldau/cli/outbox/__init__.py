"""`moldau outbox`."""

HELP = "Publish events from Postgres, in the transaction of the row that they describe."
COMMANDS = ("install", "relay", "status", "dead", "retry", "discard")
