"""`moldau broker`."""

HELP = "Show and change the configs of running nodes."
COMMANDS = ("config",)
