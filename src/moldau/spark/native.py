"""Whether tasks decode and encode records by compiled code: they do, unless MOLDAU_NATIVE is 0 in their environment."""

import os

from moldau.columnar.native import use_native


def configure_native() -> None:
    use_native(os.environ.get("MOLDAU_NATIVE") != "0")
