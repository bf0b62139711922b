"""The settings page, docs/settings.md, written from the registry so that it cannot be wrong."""

from collections.abc import Iterable, Iterator

from moldau.settings.broker import SECTIONS, broker_definitions
from moldau.settings.registry import SettingDefinition, setting_definitions
from moldau.settings.sources import environment_variable_name, flag_name
from moldau.settings.topic import TopicSettings
from moldau.settings.values import describe_allowed_values, format_value

INTRODUCTION = f"""\
# Settings

This page is written by `moldau settings --write docs/settings.md`.

A setting has one name and four places to set it, the later ones winning:

1. its default,
2. a TOML file: `moldau serve --config moldau.toml` with `log.retention.ms = 86400000` (tables and quoted
   names work too),
3. the environment: `{environment_variable_name("log.retention.ms")}=86400000`,
4. a flag: `moldau serve {flag_name("log.retention.ms")} 86400000`; for a setting that is true or false,
   `{flag_name("write.caching")}` or `--no-write-caching`.

Lists are written with commas between their parts. Settings marked *live* can be changed while the broker
runs, for one broker or for all, with any Kafka admin client; the others are read at the start. Topic settings
are set when a topic is created, and changed later, with any Kafka admin client.
"""

TABLE_HEADER = "| setting | default | values | what it does |\n|---|---|---|---|"


def settings_page() -> str:
    return "\n".join(_sections())


def _sections() -> Iterator[str]:
    yield INTRODUCTION
    for section in SECTIONS:
        yield f"## {section}\n\n{TABLE_HEADER}"
        yield from _rows(each for each in broker_definitions().values() if each.setting.section == section)
        yield ""
    yield f"## Topic settings\n\n{TABLE_HEADER}"
    yield from _rows(setting_definitions(TopicSettings).values())
    yield ""


def _rows(settings: Iterable[SettingDefinition]) -> Iterator[str]:
    for found in settings:
        made = found.setting
        doc = made.doc
        if made.broker_name is None and made.aliases:
            doc += f" Also: {', '.join(f'`{alias.name}`' for alias in made.aliases)}."
        if made.dynamic:
            doc += " *live*"
        default = format_value(found.default)
        shown = f"`{default}`" if default else ""
        yield f"| `{made.name}` | {shown} | {_cell(describe_allowed_values(found))} | {_cell(doc)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
