"""Partitions of this broker: their logs, their roles, and the replica manager."""
