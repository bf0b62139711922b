"""The outbox: events that are written to a table in the user's Postgres transaction, and a relay that sends them.

`moldau.produce(…)` in SQL inserts a row, so the event exists if and only if the transaction commits. The relay sends
each row as exactly one record (relay.py). Everything here that imports psycopg needs the extra `moldau[postgres]`.
"""
