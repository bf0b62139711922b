"""A Grafana dashboard of a cluster. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
ROW_HEIGHT, STAT_HEIGHT, PANEL_HEIGHT = 1, 4, 8
PANELS_PER_LINE, STATS_PER_LINE = 3, 8

_CLUSTER = 'cluster=~"$cluster"'
_NODE = f'{_CLUSTER},instance=~"$instance"'
_TOPIC = f'{_CLUSTER},topic=~"$topic"'
_GROUP = f'{_CLUSTER},consumergroup=~"$consumergroup"'
_RATE = "$__rate_interval"


class Query(NamedTuple):
    expression: str
    legend: str = "{{instance}}"


class Panel(NamedTuple):
    title: str
    unit: str
    """A unit of Grafana, such as `Bps`, `s` or `short`."""
    queries: Sequence[Query]
    description: str = ""
    worst_above: float | None = None
    """A single number is red above this value."""
    is_single_number: bool = False


class Row(NamedTuple):
    title: str
    panels: Sequence[Panel]


def number(title: str, expression: str, unit: str = "short", *, worst_above: float | None = None) -> Panel:
    return Panel(title, unit, [Query(expression, "")], worst_above=worst_above, is_single_number=True)


def graph(title: str, unit: str, *queries: Query, description: str = "") -> Panel:
    return Panel(title, unit, queries, description)


def _quantile(quantile: float, name: str, labels: str, by: str) -> str:
    return f"histogram_quantile({quantile}, sum by ({by}, le) (rate({name}_bucket{{{labels}}}[{_RATE}])))"


def _topic_rate(name: str) -> Query:
    expression = f'sum by (topic) (rate(kafka_server_brokertopicmetrics_{name}_total{{{_TOPIC},topic!=""}}[{_RATE}]))'
    return Query(expression, "{{topic}}")


def _node_rate(name: str, labels: str = _NODE, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({name}{{{labels}}}[{_RATE}]))"


ROWS = (
    Row(
        "Health",
        [
            number("Brokers", f"sum(kafka_brokers{{{_CLUSTER}}})"),
            number(
                "Nodes that do not respond", f'count(up{{job="moldau",{_CLUSTER}}} == 0) or vector(0)', worst_above=0
            ),
            number("Active controllers", f"sum(kafka_controller_kafkacontroller_activecontrollercount{{{_CLUSTER}}})"),
            number(
                "Partitions without leader",
                f"sum(kafka_controller_kafkacontroller_offlinepartitionscount{{{_CLUSTER}}})",
                worst_above=0,
            ),
            number(
                "Under min ISR",
                f"sum(kafka_server_replicamanager_underminisrpartitioncount{{{_CLUSTER}}})",
                worst_above=0,
            ),
            number(
                "Under-replicated",
                f"sum(kafka_server_replicamanager_underreplicatedpartitions{{{_CLUSTER}}})",
                worst_above=0,
            ),
            number(
                "Replicas offline", f"sum(kafka_server_replicamanager_offlinereplicacount{{{_CLUSTER}}})", worst_above=0
            ),
            number(
                "Lowest free disk",
                f"min(moldau_disk_free_bytes{{{_CLUSTER}}} / moldau_disk_size_bytes{{{_CLUSTER}}})",
                "percentunit",
            ),
        ],
    ),
    Row(
        "Load",
        [
            graph("Bytes in", "Bps", _topic_rate("bytesin")),
            graph("Bytes out", "Bps", _topic_rate("bytesout")),
            graph("Records in", "cps", _topic_rate("messagesin")),
            graph(
                "Requests",
                "reqps",
                Query(_node_rate("moldau_request_duration_seconds_count", by="request"), "{{request}}"),
            ),
            graph(
                "Request time, 99 %",
                "s",
                Query(_quantile(0.99, "moldau_request_duration_seconds", _NODE, "request"), "{{request}}"),
                description="From the start of a request to its response. A Fetch waits for records.",
            ),
            graph(
                "Failed requests",
                "reqps",
                Query(
                    f'sum(rate(kafka_server_brokertopicmetrics_failedproducerequests_total{{{_TOPIC},topic!=""}}[{_RATE}]))',
                    "Produce",
                ),
                Query(
                    f'sum(rate(kafka_server_brokertopicmetrics_failedfetchrequests_total{{{_TOPIC},topic!=""}}[{_RATE}]))',
                    "Fetch",
                ),
            ),
        ],
    ),
    Row(
        "Consumer groups",
        [
            graph(
                "Lag in seconds",
                "s",
                Query(
                    f'max by (group) (kafka_consumergroup_group_max_lag_seconds{{{_CLUSTER},group=~"$consumergroup"}})',
                    "{{group}}",
                ),
                description="How long ago the first unread record was appended.",
            ),
            graph(
                "Lag in records",
                "short",
                Query(
                    f'sum by (consumergroup, topic) (kafka_consumergroup_lag_sum{{{_GROUP},topic=~"$topic"}})',
                    "{{consumergroup}} {{topic}}",
                ),
                description="No line while the lag of a partition is unknown, because it has no leader.",
            ),
            graph(
                "Commit rate",
                "cps",
                Query(
                    f"sum by (consumergroup) (rate(kafka_consumergroup_current_offset_sum{{{_GROUP}}}[{_RATE}]))",
                    "{{consumergroup}}",
                ),
            ),
            graph(
                "Members",
                "short",
                Query(f"sum by (consumergroup) (kafka_consumergroup_members{{{_GROUP}}})", "{{consumergroup}}"),
            ),
            graph(
                "Partitions by state",
                "short",
                Query(
                    f"count by (consumergroup, state) (moldau_consumergroup_state{{{_GROUP}}} == 1)",
                    "{{consumergroup}} {{state}}",
                ),
                description="stalled and stopped: unread records, and no later offset is committed.",
            ),
            graph(
                "Lag in seconds by partition",
                "s",
                Query(
                    "max by (group, topic, partition) (kafka_consumergroup_group_lag_seconds"
                    f'{{{_CLUSTER},group=~"$consumergroup",topic=~"$topic"}})',
                    "{{group}} {{topic}}-{{partition}}",
                ),
            ),
        ],
    ),
    Row(
        "Replication",
        [
            graph(
                "Follower lag",
                "s",
                Query(f"max by (replica) (moldau_follower_lag_seconds{{{_CLUSTER}}})", "broker {{replica}}"),
                description="For how long a follower has lacked records, in its worst partition.",
            ),
            graph(
                "Follower lag in records",
                "short",
                Query(f"sum by (replica) (moldau_replica_lag_records{{{_TOPIC}}})", "broker {{replica}}"),
            ),
            graph(
                "ISR changes",
                "cps",
                Query(_node_rate("kafka_server_replicamanager_isrshrinks_total"), "{{instance}} shrinks"),
                Query(_node_rate("kafka_server_replicamanager_isrexpands_total"), "{{instance}} expands"),
            ),
            graph(
                "High watermark updates",
                "cps",
                Query(
                    f"sum by (topic) (rate(moldau_partition_high_watermark_updates_total{{{_TOPIC}}}[{_RATE}]))",
                    "{{topic}}",
                ),
                description="How often records are committed.",
            ),
            graph("Leaders", "short", Query(f"kafka_server_replicamanager_leadercount{{{_NODE}}}")),
            graph(
                "Late transactions",
                "short",
                Query(f"kafka_server_replicamanager_partitionswithlatetransactionscount{{{_NODE}}}"),
                description="Partitions with a transaction that holds back consumers with read_committed for too long.",
            ),
        ],
    ),
    Row(
        "Controller and quorum",
        [
            graph(
                "Heartbeat age",
                "s",
                Query(
                    f"max by (broker) (moldau_controller_broker_heartbeat_age_seconds{{{_CLUSTER}}})",
                    "broker {{broker}}",
                ),
                description="Time since the controller received the last heartbeat.",
            ),
            graph(
                "Heartbeat time, 99 %",
                "s",
                Query(_quantile(0.99, "moldau_broker_heartbeat_duration_seconds", _NODE, "instance")),
            ),
            graph(
                "Elections",
                "short",
                Query(
                    f"sum(increase(moldau_controller_leader_elections_total{{{_CLUSTER}}}[{_RATE}]))",
                    "partition leaders",
                ),
                Query(
                    f"sum(increase(kafka_controller_controllerstats_uncleanleaderelections_total{{{_CLUSTER}}}[{_RATE}]))",
                    "unclean",
                ),
                Query(f"sum(increase(moldau_quorum_elections_won_total{{{_CLUSTER}}}[{_RATE}]))", "controllers"),
            ),
            graph(
                "Metadata commit latency",
                "ms",
                Query(f"kafka_server_raftmetrics_commit_latency_avg{{{_NODE}}}"),
                description="Only the leader of the quorum commits.",
            ),
            graph("Epoch", "short", Query(f"kafka_server_raftmetrics_current_epoch{{{_NODE}}}")),
            graph("Metadata lag", "short", Query(f"moldau_metadata_image_lag_records{{{_NODE}}}")),
        ],
    ),
    Row(
        "Nodes",
        [
            graph(
                "Event loop idle",
                "percentunit",
                Query(f"kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent{{{_NODE}}}"),
                description="A node uses one core for everything but fsync.",
            ),
            graph("CPU", "percentunit", Query(f'rate(process_cpu_seconds_total{{job="moldau",{_NODE}}}[{_RATE}])')),
            graph("Memory", "bytes", Query(f'process_resident_memory_bytes{{job="moldau",{_NODE}}}')),
            graph("Disk free", "bytes", Query(f"moldau_disk_free_bytes{{{_NODE}}}")),
            graph(
                "Log size",
                "bytes",
                Query(f"sum by (topic) (kafka_log_log_size{{{_TOPIC}}})", "{{topic}}"),
                description="Of all replicas.",
            ),
            graph(
                "Fsync time, 99 %", "s", Query(_quantile(0.99, "moldau_disk_sync_duration_seconds", _NODE, "instance"))
            ),
            graph(
                "Connections",
                "short",
                Query(
                    f"sum by (instance, listener) (kafka_server_socket_server_metrics_connection_count{{{_NODE}}})",
                    "{{instance}} {{listener}}",
                ),
            ),
            graph(
                "Requests waiting and in flight",
                "short",
                Query(f"kafka_network_requestchannel_requestqueuesize{{{_NODE}}}", "{{instance}} waiting"),
                Query(f"moldau_network_requests_in_flight{{{_NODE}}}", "{{instance}} in flight"),
            ),
            graph(
                "Memory of requests",
                "bytes",
                Query(f"kafka_network_socketserver_memorypoolused{{{_NODE}}}", "{{instance}} used"),
                Query(f"kafka_network_socketserver_memorypoolavailable{{{_NODE}}}", "{{instance}} available"),
            ),
            graph("Open files", "short", Query(f'process_open_fds{{job="moldau",{_NODE}}}')),
        ],
    ),
)


def dashboard(title: str = "Moldau", rows: Sequence[Row] = ROWS) -> dict[str, Any]:
    """Returns the JSON model, for `Import` in Grafana and for provisioning."""
    return {
        "title": title,
        "uid": "moldau",
        "tags": ["moldau", "kafka"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_panels(rows)),
    }


def expressions(rows: Sequence[Row] = ROWS) -> list[str]:
    """Returns the queries of all panels."""
    return [query.expression for row in rows for panel in row.panels for query in panel.queries]


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    for name, label, query in (
        ("cluster", "Cluster", "label_values(moldau_build_info, cluster)"),
        ("instance", "Node", f"label_values(moldau_build_info{{{_CLUSTER}}}, instance)"),
        ("topic", "Topic", f"label_values(kafka_topic_partitions{{{_CLUSTER}}}, topic)"),
        ("consumergroup", "Group", f"label_values(kafka_consumergroup_members{{{_CLUSTER}}}, consumergroup)"),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"], "selected": True},
        }


def _panels(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    panel_id = top = 0
    for row in rows:
        panel_id += 1
        yield {
            "id": panel_id,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": ROW_HEIGHT},
            "panels": [],
        }
        top += ROW_HEIGHT
        has_numbers = row.panels[0].is_single_number
        per_line = STATS_PER_LINE if has_numbers else PANELS_PER_LINE
        height = STAT_HEIGHT if has_numbers else PANEL_HEIGHT
        width = COLUMNS // per_line
        for index, panel in enumerate(row.panels):
            panel_id += 1
            line, column = divmod(index, per_line)
            position = {"x": column * width, "y": top + line * height, "w": width, "h": height}
            yield _panel(panel_id, panel, position)
        top += -(-len(row.panels) // per_line) * height


def _panel(panel_id: int, panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.is_single_number:
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if panel.worst_above is not None:
            steps.append({"color": "red", "value": panel.worst_above + 1})
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        options: dict[str, Any] = {"colorMode": "value", "reduceOptions": {"calcs": ["lastNotNull"]}}
    else:
        defaults["custom"] = {"fillOpacity": 10, "showPoints": "never"}
        defaults["min"] = 0
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return {
        "id": panel_id,
        "type": "stat" if panel.is_single_number else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for index, query in enumerate(panel.queries)
        ],
    }
