"""The metadata quorum: Raft over the metadata log.

`state_machine.py` decides what to do, `effect_executor.py` does it, and `raft_client.py` is the interface for the node.
"""
