"""Starting Spark: a Java, measured settings, a cache of loaded classes, and the code that executors need."""
