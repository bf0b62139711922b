"""`moldau generate grafana`: a dashboard of a cluster."""

import json
from typing import Annotated

from moldau.cli.generate.output import Output, write_output
from moldau.cli.parameters import option, validate_name
from moldau.observe.dashboard import dashboard


def generate_grafana(
    title: Annotated[str, option("--title", "TEXT", "Title of the dashboard.", validate_name)] = "Moldau",
    output: Output = None,
) -> None:
    """Print a Grafana dashboard. Import it, or put it into a directory that Grafana provisions dashboards from.

    It shows all clusters that a Prometheus data source has, with variables for cluster, node, topic and group.
    """
    write_output(json.dumps(dashboard(title), indent=2) + "\n", output)
