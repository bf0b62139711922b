"""The transaction coordinator, and producer ids."""
