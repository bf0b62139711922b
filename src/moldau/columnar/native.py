"""Choice between the compiled and the Python codec. Both give the same results. The compiled codec needs numba."""

import logging
import os
from functools import cache

log = logging.getLogger(__name__)


def is_native() -> bool:
    """Returns whether the compiled codec is used. The environment variable MOLDAU_NATIVE=0 disables it."""
    return os.environ.get("MOLDAU_NATIVE") != "0" and is_available()


@cache
def is_available() -> bool:
    """Returns whether numba can compile the kernels. Logs the reason once if it cannot."""
    try:
        import moldau.columnar.decode_kernels
        import moldau.columnar.encode_kernels  # noqa: F401
    except ModuleNotFoundError as error:
        log.info("records are decoded and encoded without numba, slowly: %s", error)
        return False
    except Exception:
        log.warning("numba does not work here: records are decoded and encoded slowly", exc_info=True)
        return False
    return True
