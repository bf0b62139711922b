"""Writers of Spark rows to topics, Delta tables and Postgres."""
