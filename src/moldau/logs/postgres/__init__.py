"""The log store in a Postgres database: whole batches in one table, and one transaction for all logs per flush."""
