"""Launcher of Spark: a Java, tuned settings, a class cache, and the code for executors."""
