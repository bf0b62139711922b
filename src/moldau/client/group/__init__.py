"""The consumer's side of the group protocol: membership, assignors and committed offsets."""
