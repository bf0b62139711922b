"""Planner of Spark queries from a pipeline definition, and checks that start no query."""
