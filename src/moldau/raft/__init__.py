"""The metadata quorum: Raft over the metadata log. `state.py` decides, `driver.py` does."""
