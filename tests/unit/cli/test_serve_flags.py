"""Flags of `moldau serve`, one per setting."""

import pytest

from moldau.cli.serve import parse_flags, serve_help
from moldau.errors import InvalidConfigError
from moldau.settings.broker import broker_aliases, broker_definitions
from moldau.settings.registry import ConfigType
from moldau.settings.sources import build_settings, flag_name


def test_without_flags_nothing_is_set() -> None:
    flags = parse_flags([])
    assert (flags.config, flags.settings, flags.wants_help) == (None, {}, False)


@pytest.mark.parametrize("name", [*broker_definitions(), *broker_aliases()])
def test_every_setting_has_a_flag_under_each_of_its_names(name: str) -> None:
    assert parse_flags([f"{flag_name(name)}=1"]).settings == {name: "1"}
    assert parse_flags([flag_name(name), "1"]).settings == {name: "1"}


def test_boolean_flags_have_three_forms() -> None:
    assert parse_flags(["--write-caching"]).settings == {"write.caching": "true"}
    assert parse_flags(["--no-write-caching"]).settings == {"write.caching": "false"}
    assert parse_flags(["--write-caching", "false", "--store", "memory"]).settings == {
        "write.caching": "false",
        "store": "memory",
    }


def test_list_flags_are_repeated_or_comma_separated() -> None:
    assert parse_flags(["--listen", "a:1", "--listen", "b:2,c:3"]).settings == {"listen": "a:1,b:2,c:3"}


def test_negative_numbers_are_values_and_not_flags() -> None:
    settings = build_settings(flags=parse_flags(["--log-retention-ms", "-1"]).settings)
    assert settings.topic_defaults.retention_ms == -1


def test_config_is_not_a_setting() -> None:
    assert parse_flags(["--config", "moldau.toml"]) == ("moldau.toml", {}, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lisen", "a:1"], r"unknown flag --lisen; did you mean --listen\?"),
        (["--lisen=a:1"], r"unknown flag --lisen; did you mean --listen\?"),
        (["--write"], "unknown flag --write"),
        (["orders"], "unknown flag orders"),
        (["--store"], "--store: expected one argument"),
    ],
)
def test_unknown_flags_are_errors(arguments: list[str], said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        parse_flags(arguments)


def test_help_lists_all_flags_with_the_essential_ones_first() -> None:
    text = serve_help()
    shown = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    expected = [
        f"--[no-]{flag_name(name)[2:]}" if found.type is ConfigType.BOOLEAN else flag_name(name)
        for name, found in broker_definitions().items()
    ]
    assert shown == ["--config", *expected]
    assert expected[:3] == ["--listen", "--advertised-listeners", "--data-dir"]
