"""Launcher of Spark. Finds Java, sets tuned settings, uses a class cache, and sends Moldau's code to executors."""
