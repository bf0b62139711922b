"""`${NAME}` and `${NAME:-default}` in a pipeline file, from the environment. `$${` stands for `${` itself."""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?P<escaped>\$\{)|\$\{(?P<inside>[^}]*)\}")
_INSIDE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.S)


def substitute_variables(text: str, environment: Mapping[str, str]) -> str:
    """Raises ValueError, which never tells what a variable holds."""

    def value(found: "re.Match[str]") -> str:
        if found["escaped"]:
            return "${"
        inside = _INSIDE.fullmatch(found["inside"])
        if inside is None:
            raise ValueError(
                f"{found[0]} is not ${{NAME}} or ${{NAME:-default}}; for a plain ${{ write $${{ instead"
            )
        name, default = inside["name"], inside["default"]
        given = environment.get(name)
        if not given and default is not None:
            return default
        if given is None:
            raise ValueError(
                f"the environment variable {name} is not set; set it, or write ${{{name}:-default}} in the file"
            )
        return given

    return _REFERENCE.sub(value, text)
