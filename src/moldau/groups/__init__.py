"""Group coordinator: membership and committed offsets of consumer groups.

`coordinator.py` is the asyncio API for request handlers. `shard_driver.py` drives one shard, which is one partition of
`__consumer_offsets`. `shard.py` and the modules that it uses do no I/O. `group_registry.py`, `classic_group.py` and
`committed_offsets.py` turn requests and time into records (`formats.py`) and responses.
"""
