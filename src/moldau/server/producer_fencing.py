"""The error of fenced producers, which older versions of requests do not know."""

from moldau.errors import InvalidProducerEpochError, MoldauError, ProducerFencedError


def with_known_code(error: MoldauError, version: int, *, fenced_since: int) -> MoldauError:
    """Returns the error for a response of this version. PRODUCER_FENCED exists since version `fenced_since`; before,
    the error is INVALID_PRODUCER_EPOCH."""
    if isinstance(error, ProducerFencedError) and version < fenced_since:
        return InvalidProducerEpochError(str(error))
    return error
