"""Reader of topics for Spark. The driver plans offset ranges, and executors decode record batches to Arrow."""
