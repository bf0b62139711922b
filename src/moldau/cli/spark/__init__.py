"""`moldau spark`: Spark with Moldau's data source."""
