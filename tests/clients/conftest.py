"""The clients here are used as their makers ship them; each test gets fresh topics on the shared broker."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/clients" in item.path.as_posix():
            item.add_marker(pytest.mark.clients)
