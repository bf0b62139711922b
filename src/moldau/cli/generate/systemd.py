"""`moldau generate systemd`: a service unit of a node."""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.console import CommandError, print_error
from moldau.cli.generate.output import Output, write_output
from moldau.cli.parameters import option, validate_name

UNIT = """\
# A node of Moldau. As root:
#   useradd --system --home-dir {data_dir} {user}
#   install -d -o {user} {data_dir}
#   test -e {config} || install -D -m 644 /dev/null {config}  # `moldau settings` lists what it can contain
#   moldau generate systemd --output /etc/systemd/system/moldau.service
#   systemctl daemon-reload && systemctl enable --now moldau
[Unit]
Description=Moldau, a Kafka-compatible event log
After=network-online.target local-fs.target
Wants=network-online.target
RequiresMountsFor={data_dir}

[Service]
User={user}
ExecStart={command} serve --config {config} --data-dir {data_dir}
Restart=on-failure
RestartSec=2
# SIGTERM hands leadership over, answers pending requests and closes the logs.
KillMode=mixed
TimeoutStopSec=60
# Each segment and each connection uses a file.
LimitNOFILE=1000000
# The kernel ends other processes first when memory is short.
OOMScoreAdjust=-500

NoNewPrivileges=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
ReadWritePaths={data_dir}

[Install]
WantedBy=multi-user.target
"""


def validate_unit_path(value: Path) -> Path:
    """Raises BadParameter if a path cannot be written in a unit as it is."""
    if not value.is_absolute():
        raise typer.BadParameter(f"{value} is not absolute: services have no working directory of their own")
    if any(character.isspace() or character in "%$\"'\\" for character in str(value)):
        raise typer.BadParameter(f"{str(value)!r} has a space or a character that systemd expands")
    return value


def generate_systemd(
    config: Annotated[
        Path, option("--config", "FILE", "TOML file with the settings of the node.", validate_unit_path)
    ] = Path("/etc/moldau/node.toml"),
    data_dir: Annotated[
        Path, option("--data-dir", "DIR", "Directory for the data, owned by the user.", validate_unit_path)
    ] = Path("/var/lib/moldau"),
    user: Annotated[str, option("--user", "NAME", "User that the node runs as.", validate_name)] = "moldau",
    output: Output = None,
) -> None:
    """Print a systemd unit that runs `moldau serve` of this installation.

    moldau generate systemd --output /etc/systemd/system/moldau.service
    """
    command = Path(sys.executable).with_name("moldau")
    if not command.exists():
        command = Path(shutil.which("moldau") or command)
    try:
        validate_unit_path(command)
    except typer.BadParameter as error:
        print_error(CommandError(f"The command moldau is at {command}: {error.message}"))
        raise typer.Exit(1) from None
    write_output(UNIT.format(command=command, config=config, data_dir=data_dir, user=user), output)
