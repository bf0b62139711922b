"""`moldau group`: consumer groups."""
