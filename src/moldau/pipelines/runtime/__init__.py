"""The runtime of pipelines: queries, state directory, progress and shutdown."""
