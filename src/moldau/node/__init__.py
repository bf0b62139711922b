"""A node: broker and controller in one process."""
