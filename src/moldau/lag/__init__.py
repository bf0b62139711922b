"""The lag of consumer groups in records and in seconds, with rates, sampled by their coordinators."""
