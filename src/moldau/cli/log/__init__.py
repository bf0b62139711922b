"""`moldau log`: offline tools for segment files."""
