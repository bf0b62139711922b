"""`moldau settings`: prints the settings reference."""

from pathlib import Path
from typing import Annotated, Any

import typer


def settings(
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to a file instead of standard output.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print all settings with default, allowed values and description."""
    from moldau.settings.docs_page import settings_page

    if as_json and write is not None:
        raise typer.BadParameter("--json cannot be combined with --write")
    if as_json:
        _print_json()
    elif write is None:
        typer.echo(settings_page(), nl=False)
    else:
        write.write_text(settings_page(), encoding="utf-8")


def _print_json() -> None:
    from moldau.cli.console import print_json_lines
    from moldau.settings.broker import broker_definitions
    from moldau.settings.registry import SettingDefinition, setting_definitions
    from moldau.settings.topic import TopicSettings
    from moldau.settings.values import describe_allowed_values, format_value

    def to_json(definition: SettingDefinition, scope: str) -> dict[str, Any]:
        return {
            "name": definition.name,
            "scope": scope,
            "default": format_value(definition.default),
            "values": describe_allowed_values(definition),
            "description": definition.doc,
            "is_dynamic": scope == "topic" or definition.dynamic,
        }

    print_json_lines(to_json(each, "broker") for each in broker_definitions().values())
    print_json_lines(to_json(each, "topic") for each in setting_definitions(TopicSettings).values())
