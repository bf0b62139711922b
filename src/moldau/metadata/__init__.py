"""Cluster metadata: the records of the metadata log, the image built from them, and the publication of images."""
