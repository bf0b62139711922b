"""One registry of typed, documented settings, from which flags, file, DescribeConfigs and docs are made."""
