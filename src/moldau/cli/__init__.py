"""The command line: one file per command. Nothing that a node needs is here."""
