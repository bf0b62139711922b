"""Request processing: dispatch, sessions, the error table, forwarding, fetch sessions and delayed fetches."""
