"""Conversion between record batches and Arrow columns, without a Python object per record."""
