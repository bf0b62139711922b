"""Fault injection on real processes: each node in its own network namespace, with its own small disk."""
