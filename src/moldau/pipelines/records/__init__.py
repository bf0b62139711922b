"""Conversion between record bytes and columns, and handling of bad records."""
