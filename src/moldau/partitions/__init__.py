"""Partitions: one replica each. The role decides (pure), the partition does, the table knows them all."""
