"""The consumer's side of the group protocol: membership and assignors."""
