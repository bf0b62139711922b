"""The controller decides on topics, configs, brokers and partition leaders, and writes its decisions to the metadata
log.

A decision is a list of metadata records plus a response to the caller. Decisions are made by pure functions on
`ControllerState`. The QuorumController (`quorum_controller.py`) appends the records to the metadata log.
"""
