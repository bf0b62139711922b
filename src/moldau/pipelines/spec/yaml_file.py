"""Reader of YAML pipeline files. Returns mappings, lists and texts, with line numbers.

`${NAME}` is replaced by an environment variable. All scalars stay texts, so that `1.10` does not become the number 1.1.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moldau.pipelines.definition import PipelineError
from moldau.pipelines.spec.section import FileLocations

_NULLS = ("", "~", "null", "Null", "NULL")


def parse_yaml(path: Path, text: str, environment: Mapping[str, str]) -> tuple[object, FileLocations]:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise PipelineError(f"{where}: this is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise PipelineError(f"{path}: this is not YAML: {error}") from None
    if root is None:
        raise PipelineError(f"{path}: the file is empty; a pipeline has at least a name, sources and sinks")
    lines: dict[tuple[str, ...], int] = {(): root.start_mark.line + 1}
    locations = FileLocations(str(path), lines)

    def convert(node: Any, key_path: tuple[str, ...]) -> object:
        if node.id == "scalar":
            if node.style is None and node.value in _NULLS:
                return None
            try:
                return substitute_variables(node.value, environment)
            except ValueError as error:
                raise locations.error(key_path, f"{'.'.join(key_path)}: {error}") from None
        if node.id == "sequence":
            return [convert(each, key_path) for each in node.value]
        tree: dict[str, object] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            inner = (*key_path, key)
            if key in tree:
                raise locations.error(inner, f"{'.'.join(inner)} is duplicated, again at line {line}")
            lines[inner] = line
            tree[key] = convert(value_node, inner)
        return tree

    return convert(root, ()), locations


_REFERENCE = re.compile(r"\$(?P<escaped>\$\{)|\$\{(?P<inside>[^}]*)\}")
_INSIDE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.S)


def substitute_variables(text: str, environment: Mapping[str, str]) -> str:
    """Replaces `${NAME}` and `${NAME:-default}` by environment variables. `$${` becomes `${`.

    Raises ValueError. Its message never contains values of variables.
    """

    def value(found: "re.Match[str]") -> str:
        if found["escaped"]:
            return "${"
        reference = _INSIDE.fullmatch(found["inside"])
        if reference is None:
            raise ValueError(f"{found[0]} is not ${{NAME}} or ${{NAME:-default}}; for a plain ${{ write $${{ instead")
        name, default = reference["name"], reference["default"]
        variable = environment.get(name)
        if not variable and default is not None:
            return default
        if variable is None:
            raise ValueError(
                f"the environment variable {name} is not set; set it, or write ${{{name}:-default}} in the file"
            )
        return variable

    return _REFERENCE.sub(value, text)
