"""The command line `moldau`. Each command group is a package, and each command is a file."""
