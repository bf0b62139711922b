"""`moldau cluster`."""

HELP = "Show the nodes of a cluster, audit and move their replicas, and add or remove nodes."
COMMANDS = (
    "status",
    "audit",
    "new-id",
    "drain",
    "reassign",
    "elect-leaders",
    "add-voter",
    "remove-voter",
    "unregister",
)
