"""Request processing: dispatch, request contexts, error codes, forwarding, fetch sessions and delayed fetches."""
