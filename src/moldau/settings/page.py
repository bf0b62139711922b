"""The settings page, docs/settings.md, written from the registry so that it cannot be wrong."""

from collections.abc import Iterable, Iterator

from moldau.settings.broker import GROUPS, broker_registry
from moldau.settings.registry import Declared, declared
from moldau.settings.sources import flag_of, variable_of
from moldau.settings.topic import TopicSettings
from moldau.settings.values import allowed, format_value

INTRODUCTION = f"""\
# Settings

This page is written by `moldau settings --write docs/settings.md`.

A setting has one name and four places to set it, the later ones winning:

1. its default,
2. a TOML file: `moldau serve --config moldau.toml` with `log.retention.ms = 86400000` (tables and quoted
   names work too),
3. the environment: `{variable_of("log.retention.ms")}=86400000`,
4. a flag: `moldau serve {flag_of("log.retention.ms")} 86400000`; for a setting that is true or false,
   `{flag_of("write.caching")}` or `--no-write-caching`.

Lists are written with commas between their parts. Settings marked *live* can be changed while the broker
runs, for one broker or for all, with any Kafka admin client; the others are read at the start. Topic settings
are set when a topic is created, and changed later, with any Kafka admin client.
"""

HEAD = "| setting | default | values | what it does |\n|---|---|---|---|"


def settings_page() -> str:
    return "\n".join(_parts())


def _parts() -> Iterator[str]:
    yield INTRODUCTION
    for group in GROUPS:
        yield f"## {group}\n\n{HEAD}"
        yield from _rows(each for each in broker_registry().values() if each.setting.group == group)
        yield ""
    yield f"## Topic settings\n\n{HEAD}"
    yield from _rows(declared(TopicSettings).values())
    yield ""


def _rows(settings: Iterable[Declared]) -> Iterator[str]:
    for found in settings:
        made = found.setting
        doc = made.doc
        if made.broker_name is None and made.aliases:
            doc += f" Also: {', '.join(f'`{alias.name}`' for alias in made.aliases)}."
        if made.dynamic:
            doc += " *live*"
        default = format_value(found.default)
        shown = f"`{default}`" if default else ""
        yield f"| `{made.name}` | {shown} | {_cell(allowed(found))} | {_cell(doc)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
