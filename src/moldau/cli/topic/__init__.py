"""`moldau topic`: topics."""
