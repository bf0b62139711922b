"""`moldau cluster`: the nodes and the metadata quorum of a cluster."""
