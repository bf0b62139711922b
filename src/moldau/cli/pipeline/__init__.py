"""`moldau pipeline`: pipelines on Spark."""
