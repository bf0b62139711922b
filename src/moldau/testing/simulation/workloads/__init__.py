"""Clients that generate load in a scenario."""
