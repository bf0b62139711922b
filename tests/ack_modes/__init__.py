"""The proof of what each ack mode delivers how often: `python -m tests.ack_modes`."""
