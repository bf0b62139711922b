"""Writers of Spark rows to topics and Delta tables."""
