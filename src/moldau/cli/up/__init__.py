"""`moldau up`."""
