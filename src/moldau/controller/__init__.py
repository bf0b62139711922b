"""The controller: decides what becomes of topics, settings and brokers, as records of the metadata log.

The decisions are pure functions on `ControllerState`; `driver.py` runs them on the quorum's log.
"""
