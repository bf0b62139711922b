"""Reading topics into Spark: options, offsets and ranges on the driver, batches turned into Arrow on the workers."""
