"""Group coordinator: membership and committed offsets of consumer groups.

`coordinator.py` is the asyncio API for request handlers and `shard_driver.py` drives one partition of
`__consumer_offsets`. `shard.py` and the modules below it are pure: `group_registry.py`, `classic_group.py` and
`committed_offsets.py` turn requests and time into records (`formats.py`) and responses.
"""
