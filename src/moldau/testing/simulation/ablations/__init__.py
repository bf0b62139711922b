"""Ablations: safeguards that can be disabled to show that the checkers detect it."""
