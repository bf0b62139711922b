"""Cluster metadata: the records of the metadata log, the image they add up to, and its publication."""
