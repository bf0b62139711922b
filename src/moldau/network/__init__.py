"""Client connections: request frames in, responses out in the same order, and limits on both."""
