"""`moldau cluster`."""

HELP = "Show the nodes of a cluster, move their replicas, and add or remove nodes."
COMMANDS = ("status", "new-id", "drain", "reassign", "elect-leaders", "add-voter", "remove-voter", "unregister")
