"""Kafka's command-line tools, run one after the other against a node or its files."""

from pathlib import Path

from apache_kafka import ApacheKafka
from java_clients import JavaClients

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
DUMP = "org.apache.kafka.tools.DumpLogSegments"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


class Tools:
    """Runs the main methods of Kafka's command-line tools."""

    def __init__(self, jvm: JavaClients, work_dir: Path) -> None:
        self._jvm = jvm
        self._kafka = ApacheKafka(work_dir)

    def run(self, main_class: str, *arguments: str, stdin: str | None = None) -> str:
        """Returns the tool's output; raises KafkaFailed with it if the tool fails."""
        return self._jvm.tool(main_class, arguments, stdin)

    def run_alone(self, main_class: str, *arguments: str) -> str:
        """Runs the tool in its own process, for tools that do some work at exit."""
        return self._kafka.run_tool(main_class, arguments)


def table(printed: str, group: str) -> list[dict[str, str]]:
    """Returns the rows about one group in the last table of a tool's output, by column name."""
    lines = [line for line in printed.splitlines() if line.strip()]
    first = max(number for number, line in enumerate(lines) if line.startswith("GROUP "))
    header = lines[first].replace("COORDINATOR (ID)", "COORDINATOR").split()
    rows = [line.replace("  (", "(").split() for line in lines[first + 1 :]]
    return [dict(zip(header, row, strict=True)) for row in rows if row[0] == group]
