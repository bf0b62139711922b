"""Why Spark cannot be started, in words that end with what to do about it."""


class LaunchError(Exception):
    """Its text is all that a user needs: the cause, and the way out."""


NO_PYSPARK = "PySpark is not installed: pip install 'moldau[spark]'"
