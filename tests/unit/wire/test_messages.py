"""The generated types of requests and responses match the schemas and the handlers."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.handlers import REGISTRY
from moldau.wire import messages
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import decoder, encoder

ROOT = Path(__file__).parents[3]


def test_the_committed_types_are_what_the_generator_writes() -> None:
    command = [sys.executable, "tools/generate_messages.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("api_key", sorted(REGISTRY), ids=lambda key: key.name)
def test_a_handler_is_annotated_with_the_messages_of_its_api(api_key: ApiKey) -> None:
    [function] = ast.parse(inspect.getsource(REGISTRY[api_key].handler)).body  # type: ignore[arg-type]
    assert isinstance(function, ast.AsyncFunctionDef)
    name = "".join(part.capitalize() for part in api_key.name.split("_"))
    assert ast.unparse(function.args.args[0].annotation or function) == f"{name}Request"
    assert (
        ast.unparse(function.returns or function).removesuffix(" | None").removesuffix(" | EncodedResponse")
        == f"{name}Response"
    )


def test_a_field_that_a_version_lacks_has_its_default() -> None:
    data = bytearray()
    encoder(ApiKey.FETCH, 4, "request")(
        data, {"max_wait": 0, "min_bytes": 1, "topics": [{"topic": "t", "partitions": []}]}
    )
    request = decoder(ApiKey.FETCH, 4, "request")(memoryview(data))
    assert (request.rack_id, request.session_epoch, request.forgotten_topics_data) == ("", -1, None)
    assert request.replica_state.replica_id == -1
    assert request.topics[0].topic_id is None
    assert "rack_id" not in vars(request), "it costs nothing to read"


def test_message_names_exist_at_runtime_for_annotations_only() -> None:
    assert messages.FetchResponse is dict
    with pytest.raises(AttributeError):
        messages.__nothing__  # noqa: B018
