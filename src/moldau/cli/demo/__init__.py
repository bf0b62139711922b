"""`moldau demo`: a node, sample orders and a pipeline in one terminal."""
