"""`moldau generate`."""

HELP = "Print configuration for Prometheus, Grafana, Docker Compose and systemd."
COMMANDS = ("prometheus", "grafana", "compose", "systemd")
