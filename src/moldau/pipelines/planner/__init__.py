"""Plans the Spark queries of a pipeline, and checks a pipeline without starting its queries."""
