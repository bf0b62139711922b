"""From the bytes of records to columns and back, and what becomes of those that are bad."""
