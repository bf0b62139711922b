"""`moldau bench`."""
