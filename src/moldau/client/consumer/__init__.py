"""The consumer: subscription, fetching, positions and commits."""
