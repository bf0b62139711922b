"""Safeguards that can be switched off to show that the checkers notice."""
