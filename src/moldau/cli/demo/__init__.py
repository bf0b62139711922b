"""`moldau demo`."""
