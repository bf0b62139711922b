"""`moldau pipeline`."""

HELP = """Run pipelines from topics to topics and tables, on Spark.

A pipeline is one file: input topics, SQL or Python, output topics and tables. In four steps:

moldau pipeline new revenue

moldau pipeline check revenue.yaml

moldau pipeline run revenue.yaml

moldau pipeline status revenue"""
COMMANDS = ("new", "check", "run", "list", "status", "stop", "replay", "redrive", "chart")
