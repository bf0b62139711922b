"""Logs of record batches: the store interface, its implementations, and the state that every log keeps."""
