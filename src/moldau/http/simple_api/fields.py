"""Types of the fields of request bodies. Numbers are also accepted as strings, and ids in both forms."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from moldau.settings.registry import INT_MAX, LONG_MAX

_INTEGER = re.compile("-?[0-9]{1,19}", re.ASCII)


def parse_number(value: Any) -> Any:
    """Returns the number that a string stands for. Pydantic rejects all other values that are not integers."""
    return int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value


def _parse_node_id(value: Any) -> Any:
    """Also accepts the form `broker-2`."""
    return parse_number(value.removeprefix("broker-") if isinstance(value, str) else value)


def _check_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("the text has a lone surrogate, which UTF-8 cannot encode") from None
    return value


def _number_schema(low: int, high: int, pattern: str) -> WithJsonSchema:
    """Returns the schema of a number that may be a string. `pattern` matches strings that are surely in the range."""
    return WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": low, "maximum": high}, {"type": "string", "pattern": pattern}]}
    )


Text = Annotated[str, AfterValidator(_check_text)]
Count = Annotated[
    int, BeforeValidator(parse_number), Field(ge=1, le=INT_MAX), _number_schema(1, INT_MAX, "^[1-9][0-9]{0,8}$")
]
NodeId = Annotated[
    int, BeforeValidator(_parse_node_id), Field(ge=0, le=INT_MAX), _number_schema(0, INT_MAX, "^(broker-)?[0-9]{1,9}$")
]
Epoch = Annotated[
    int, BeforeValidator(parse_number), Field(ge=-1, le=INT_MAX), _number_schema(-1, INT_MAX, "^(-1|[0-9]{1,9})$")
]
LastOffset = Annotated[
    int,
    BeforeValidator(parse_number),
    Field(ge=-1, le=LONG_MAX - 1),
    _number_schema(-1, LONG_MAX - 1, "^(-1|[0-9]{1,18})$"),
]
