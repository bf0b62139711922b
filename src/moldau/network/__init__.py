"""Client connections: they read request frames, send the responses in the same order, and limit the memory of both."""
