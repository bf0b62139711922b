"""A broker's registration with the controller, its heartbeats and lease, and its controlled shutdown.

`state.py` decides what to send and when. `manager.py` (BrokerLifecycleManager) sends the requests.
"""
