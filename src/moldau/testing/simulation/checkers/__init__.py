"""Histories of what clients saw, and the checkers that find violations in them."""
