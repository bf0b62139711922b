"""Ablations: each disables a safeguard, to show that the checkers detect the missing safeguard."""
