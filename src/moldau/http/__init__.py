"""The HTTP server of a node: health, and the HTTP API, which is loaded at its first request."""
