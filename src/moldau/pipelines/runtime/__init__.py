"""A run: its queries, its state directory, its progress, its end."""
