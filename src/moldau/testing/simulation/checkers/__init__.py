"""Histories of client operations, and checkers that find violations in them."""
