"""Consumer groups: who is in a group, who consumes what, and how far they have come.

`classic.py` is one group as a pure state machine; `state.py` holds all groups of one partition of
`__consumer_offsets`, with their committed offsets, and is what decisions are made on; `coordinator.py` is the
asyncio driver that request handlers call. What must survive is records in Kafka's own formats (`formats.py`).
"""
