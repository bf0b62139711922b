"""docs/settings.md matches the registry."""

from pathlib import Path

from moldau.settings.broker import broker_definitions
from moldau.settings.docs_page import settings_page
from moldau.settings.registry import setting_definitions
from moldau.settings.topic import TopicSettings

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_page_in_docs_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), "run: moldau settings --write docs/settings.md"


def test_every_setting_has_one_row() -> None:
    rows = [line for line in settings_page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(broker_definitions()) + len(setting_definitions(TopicSettings))
    assert all(row.count(" | ") == 3 for row in rows)
