"""Typed settings: one registry for flags, environment, TOML file, DescribeConfigs and documentation."""
