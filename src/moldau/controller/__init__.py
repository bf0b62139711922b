"""The controller: decides on topics, configs, brokers and partition leaders, as records of the metadata log.

Decisions are pure functions on `ControllerState`; `driver.py` (QuorumController) runs them on the metadata log.
"""
