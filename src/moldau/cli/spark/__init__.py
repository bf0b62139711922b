"""`moldau spark`."""

HELP = "Run Spark with Moldau's data source."
COMMANDS = ("shell", "submit", "master", "worker")
