"""Client connections: frames in, answers out in the order of the requests, limits on both."""
