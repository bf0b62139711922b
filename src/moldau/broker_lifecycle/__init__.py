"""A broker's place in the cluster: it registers with the controller, says that it is alive, and leaves in good order.

`state.py` decides what to say and when; `driver.py` says it; `lease.py` is what the rest of the node goes by.
"""
