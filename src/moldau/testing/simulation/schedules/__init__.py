"""Schedules of transactions: the state machines of coordinator, leaders and producers, without nodes or an event loop.

Messages between them wait until a test or a random schedule delivers, duplicates or drops them.
"""
