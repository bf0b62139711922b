"""Kafka's command-line tools, run one after the other against a node or its files."""

from pathlib import Path

from apache_kafka import ApacheKafka


class Tools:
    """Runs Kafka's command-line tools."""

    def __init__(self, work_dir: Path) -> None:
        self._kafka = ApacheKafka(work_dir)

    def run(self, main_class: str, *arguments: str, stdin: str | None = None) -> str:
        """What the tool printed; a tool that fails raises KafkaFailed with its last lines."""
        return self._kafka.run_tool(main_class, arguments, input=stdin)
