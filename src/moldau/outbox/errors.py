"""Errors of the outbox."""


class OutboxError(Exception):
    """An expected failure. The message is for the user and says what to do."""


class PostgresUnavailableError(OutboxError):
    """Postgres cannot be reached, or is starting or stopping. The same call may succeed later."""


class PositionMismatchError(OutboxError):
    """The position in Kafka does not fit the database, so it is unknown which rows were sent already."""
