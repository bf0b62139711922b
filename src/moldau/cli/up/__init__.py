"""`moldau up`: a cluster of several nodes on this machine."""
