"""Writing rows of Spark into topics and tables."""
