"""`moldau generate prometheus`: the configuration of Prometheus and the alert rules."""

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.generate.output import validate_addresses, write_file_of, write_output
from moldau.cli.parameters import option, validate_name
from moldau.observe.alert_rules import rule_groups
from moldau.observe.prometheus_config import CONFIG_FILE, RULES_FILE, prometheus_config
from moldau.observe.yaml_text import format_yaml

DEFAULT_TARGETS = ("127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8003")
"""The nodes of `moldau up --http-port 8001`."""


def generate_prometheus(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="HOST:PORT",
            callback=validate_addresses,
            show_default=False,
            help="HTTP addresses of all nodes (http.port); by default those of `moldau up --http-port 8001`.",
        ),
    ] = None,
    cluster: Annotated[
        str, option("--cluster", "NAME", "Value of the label `cluster`, different for each cluster.", validate_name)
    ] = "moldau",
    interval_s: Annotated[
        int, option("--interval", "SECONDS", "Interval of scrapes and of the evaluation of rules.", min=1)
    ] = 15,
    alertmanager: Annotated[
        list[str] | None,
        option(
            "--alertmanager", "HOST:PORT", "Alertmanager that receives alerts; can be repeated.", validate_addresses
        ),
    ] = None,
    alerts: Annotated[
        bool, typer.Option("--alerts", help="Print the alert rules instead of the configuration.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help=f"Write {CONFIG_FILE} and {RULES_FILE} to a directory instead."
        ),
    ] = None,
) -> None:
    """Print the configuration of a Prometheus server that scrapes all nodes, and the alert rules.

    moldau generate prometheus broker-1:8001 broker-2:8001 broker-3:8001 --output monitoring
    """
    config = format_yaml(
        prometheus_config(
            targets or DEFAULT_TARGETS, cluster=cluster, interval_s=interval_s, alertmanagers=alertmanager or ()
        )
    )
    rules = format_yaml(rule_groups())
    if output is None:
        write_output(rules if alerts else config, None)
        return
    if alerts:
        raise typer.BadParameter("--output writes both files: leave out --alerts.")
    write_file_of(output, CONFIG_FILE, config)
    write_file_of(output, RULES_FILE, rules)
