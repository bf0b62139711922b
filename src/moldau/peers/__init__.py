"""The other nodes of the cluster: how this one calls them, and how it learns that one of them is gone."""
