"""From a definition to Spark queries, or to findings about it; nothing is started here."""
