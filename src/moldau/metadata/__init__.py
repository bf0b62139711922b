"""What the cluster looks like: the records of the metadata log, the image they add up to, and who is told."""
