"""Reader of topics for Spark: offsets are planned on the driver, and executors decode batches to Arrow."""
