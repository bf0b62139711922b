"""Alert rules for Prometheus. Pure.

The expressions add up or compare the series of all nodes of a cluster, which have the same label `cluster` or none.
"""

from collections.abc import Sequence
from typing import NamedTuple

from moldau.observe.yaml_text import Yaml

JOB = "moldau"
"""The name of the scrape job, which the rules about missing nodes need."""


class AlertRule(NamedTuple):
    name: str
    expression: str
    hold: str
    """For how long the expression must hold before the alert fires."""
    severity: str
    summary: str
    description: str


def rule_groups(rules: "Sequence[AlertRule] | None" = None) -> dict[str, Yaml]:
    """Returns the content of a rule file."""
    return {
        "groups": [
            {
                "name": "moldau",
                "rules": [
                    {
                        "alert": each.name,
                        "expr": each.expression,
                        "for": each.hold,
                        "labels": {"severity": each.severity},
                        "annotations": {"summary": each.summary, "description": each.description},
                    }
                    for each in (ALERT_RULES if rules is None else rules)
                ],
            }
        ]
    }


CRITICAL, WARNING = "critical", "warning"

ALERT_RULES = (
    # Nodes and heartbeats
    AlertRule(
        "MoldauNodeDown",
        f"up{{job='{JOB}'}} == 0",
        "30s",
        CRITICAL,
        "Node {{ $labels.instance }} is down",
        "Prometheus cannot read the metrics of {{ $labels.instance }}. Look at its log and start it again.",
    ),
    AlertRule(
        "MoldauBrokerHeartbeatTimeout",
        "moldau_controller_broker_heartbeat_age_seconds > 10",
        "15s",
        CRITICAL,
        "Broker {{ $labels.broker }} sends no heartbeats",
        "The controller received the last heartbeat of broker {{ $labels.broker }} {{ $value | humanizeDuration }} "
        "ago. If the broker was removed for good, run `moldau cluster unregister {{ $labels.broker }}`.",
    ),
    AlertRule(
        "MoldauBrokerHeartbeatSlow",
        "histogram_quantile(0.99, sum by (cluster, instance, le) "
        "(rate(moldau_broker_heartbeat_duration_seconds_bucket[5m]))) > 1",
        "5m",
        WARNING,
        "Heartbeats of {{ $labels.instance }} are slow",
        "One in a hundred heartbeats takes {{ $value | humanizeDuration }}. A broker whose heartbeats take as long as "
        "broker.session.timeout.ms is fenced. Look at its event loop, its disk and the network.",
    ),
    AlertRule(
        "MoldauBrokerFenced",
        "kafka_controller_kafkacontroller_fencedbrokercount > 0",
        "2m",
        WARNING,
        "{{ $value }} brokers are fenced",
        "Fenced brokers lead no partition. `moldau cluster status` names them.",
    ),
    AlertRule(
        "MoldauLeaseLost",
        "moldau_broker_lease_valid == 0 and moldau_broker_shutting_down == 0",
        "15s",
        CRITICAL,
        "{{ $labels.instance }} has no lease",
        "The node has no contact with the controller and accepts no writes. Look at the network and at its log.",
    ),
    # The controller and the quorum
    AlertRule(
        "MoldauNoActiveController",
        "sum by (cluster) (kafka_controller_kafkacontroller_activecontrollercount) == 0",
        "15s",
        CRITICAL,
        "The cluster has no active controller",
        "No leader is elected and no topic is changed. A majority of the voters must run and reach each other.",
    ),
    AlertRule(
        "MoldauSeveralActiveControllers",
        "sum by (cluster) (kafka_controller_kafkacontroller_activecontrollercount) > 1",
        "1m",
        CRITICAL,
        "The cluster has {{ $value }} active controllers",
        "All but one have lost contact with the majority, or the nodes belong to different clusters: give each "
        "cluster its own label `cluster`.",
    ),
    AlertRule(
        "MoldauNoQuorumLeader",
        "kafka_server_raftmetrics_current_leader == -1",
        "30s",
        CRITICAL,
        "{{ $labels.instance }} knows no leader of the metadata quorum",
        "The node cannot reach a leader, or there is none. `moldau cluster status` shows the voters.",
    ),
    AlertRule(
        "MoldauFrequentControllerElections",
        "sum by (cluster) (increase(moldau_quorum_elections_won_total[15m])) > 3",
        "0s",
        WARNING,
        "The metadata quorum elected {{ $value | humanize }} leaders in 15 minutes",
        "Voters lose contact with the leader again and again. Look at the network, the disks and the event loops.",
    ),
    AlertRule(
        "MoldauFrequentLeaderElections",
        "sum by (cluster) (increase(moldau_controller_leader_elections_total[10m])) "
        "/ max by (cluster) (kafka_controller_kafkacontroller_globalpartitioncount) > 2",
        "0s",
        WARNING,
        "Partitions get new leaders often",
        "In 10 minutes a partition got {{ $value | humanize }} new leaders on average. Brokers come and go, or lose "
        "their leases.",
    ),
    AlertRule(
        "MoldauUncleanLeaderElection",
        "sum by (cluster) (increase(kafka_controller_controllerstats_uncleanleaderelections_total[15m])) > 0",
        "0s",
        CRITICAL,
        "An unclean leader election",
        "A replica that was not in sync leads a partition. Committed records may be lost.",
    ),
    AlertRule(
        "MoldauMetadataCommitSlow",
        "kafka_server_raftmetrics_commit_latency_avg > 500",
        "5m",
        WARNING,
        "Metadata changes are slow on {{ $labels.instance }}",
        "The average change takes {{ $value | humanize }} ms until a majority of the voters has it on disk.",
    ),
    # Partitions and replicas
    AlertRule(
        "MoldauPartitionsWithoutLeader",
        "kafka_controller_kafkacontroller_offlinepartitionscount > 0",
        "30s",
        CRITICAL,
        "{{ $value }} partitions have no leader",
        "They cannot be read or written. moldau_partition_without_leader names them.",
    ),
    AlertRule(
        "MoldauUnderMinIsr",
        "kafka_server_replicamanager_underminisrpartitioncount > 0",
        "30s",
        CRITICAL,
        "{{ $value }} partitions of {{ $labels.instance }} reject writes",
        "They have fewer in-sync replicas than min.insync.replicas, so writes with acks=all fail.",
    ),
    AlertRule(
        "MoldauUnderReplicated",
        "sum by (cluster) (kafka_server_replicamanager_underreplicatedpartitions) > 0",
        "5m",
        WARNING,
        "{{ $value }} partitions lack in-sync replicas",
        "A broker is down or does not keep up.",
    ),
    AlertRule(
        "MoldauReplicaLag",
        "max by (cluster, replica) (moldau_follower_lag_seconds) > 30",
        "1m",
        WARNING,
        "Broker {{ $labels.replica }} does not keep up as a follower",
        "It has lacked records of a leader for {{ $value | humanizeDuration }}. moldau_replica_lag_records names the "
        "partitions.",
    ),
    AlertRule(
        "MoldauReplicasOffline",
        "kafka_server_replicamanager_offlinereplicacount > 0",
        "15s",
        CRITICAL,
        "{{ $value }} replicas on {{ $labels.instance }} cannot be read or written",
        "The disk is full or failed. The log of the node names the replicas and the error.",
    ),
    AlertRule(
        "MoldauHighWatermarkStuck",
        "(max by (cluster, topic, partition) (kafka_log_log_logendoffset) "
        "> max by (cluster, topic, partition) (kafka_topic_partition_current_offset)) "
        "and sum by (cluster, topic, partition) (increase(moldau_partition_high_watermark_updates_total[5m])) == 0",
        "5m",
        CRITICAL,
        "Records of {{ $labels.topic }}-{{ $labels.partition }} are not committed",
        "The log has records above the high watermark, which has not moved for five minutes: in-sync replicas do not "
        "fetch, or there are too few.",
    ),
    AlertRule(
        "MoldauHangingTransaction",
        "sum by (cluster) (kafka_server_replicamanager_partitionswithlatetransactionscount) > 0",
        "1m",
        WARNING,
        "A transaction that does not end holds back consumers in {{ $value }} partitions",
        "Consumers with read_committed do not advance. `moldau transaction hanging` shows and ends it.",
    ),
    # Disk, memory and CPU
    AlertRule(
        "MoldauDiskNearlyFull",
        "moldau_disk_free_bytes / moldau_disk_size_bytes < 0.1",
        "1m",
        CRITICAL,
        "The disk of {{ $labels.instance }} is nearly full",
        "{{ $value | humanizePercentage }} are free. Lower the retention of large topics, or move replicas.",
    ),
    AlertRule(
        "MoldauDiskFillsUp",
        "predict_linear(moldau_disk_free_bytes[1h], 4 * 3600) < 0 "
        "and moldau_disk_free_bytes / moldau_disk_size_bytes < 0.4",
        "15m",
        WARNING,
        "The disk of {{ $labels.instance }} will be full in four hours",
        "At the rate of the last hour. Lower the retention of large topics, or move replicas.",
    ),
    AlertRule(
        "MoldauDiskSlow",
        "histogram_quantile(0.99, sum by (cluster, instance, le) "
        "(rate(moldau_disk_sync_duration_seconds_bucket[5m]))) > 1",
        "5m",
        WARNING,
        "Fsyncs of {{ $labels.instance }} are slow",
        "One in a hundred takes {{ $value | humanizeDuration }}. Writes with acks=all wait for them.",
    ),
    AlertRule(
        "MoldauMemoryBudgetExhausted",
        "moldau_network_connections_waiting_for_memory > 0",
        "1m",
        WARNING,
        "{{ $labels.instance }} does not read from {{ $value }} connections",
        "Requests in progress use all of queued.max.request.bytes.",
    ),
    AlertRule(
        "MoldauEventLoopBusy",
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent < 0.1",
        "10m",
        WARNING,
        "The event loop of {{ $labels.instance }} is busy",
        "It is idle for {{ $value | humanizePercentage }} of the time. A node uses one core: move leaders to other "
        "nodes, or add nodes.",
    ),
    AlertRule(
        "MoldauTooManyOpenFiles",
        "process_open_fds / process_max_fds > 0.9 and on (instance, job) moldau_build_info",
        "5m",
        WARNING,
        "{{ $labels.instance }} has nearly as many open files as it may have",
        "Raise its limit (LimitNOFILE of the systemd unit). Each segment and each connection uses a file.",
    ),
    # Consumer groups
    AlertRule(
        "MoldauGroupStalled",
        "count by (cluster, consumergroup, topic) (moldau_consumergroup_state{state=~'stalled|stopped'} == 1) > 0",
        "1m",
        WARNING,
        "Group {{ $labels.consumergroup }} does not advance in {{ $labels.topic }}",
        "{{ $value }} partitions have unread records, and the group commits no later offset. "
        "`moldau group lag {{ $labels.consumergroup }}` shows them.",
    ),
    AlertRule(
        "MoldauGroupLag",
        "max by (cluster, group) (kafka_consumergroup_group_max_lag_seconds) > 300",
        "5m",
        WARNING,
        "Group {{ $labels.group }} is {{ $value | humanizeDuration }} behind",
        "Its first unread record was appended that long ago. `moldau group lag {{ $labels.group }}` shows where.",
    ),
    AlertRule(
        "MoldauGroupLostRecords",
        "count by (cluster, consumergroup, topic) (moldau_consumergroup_state{state='lost_records'} == 1) > 0",
        "0s",
        CRITICAL,
        "Records were deleted before group {{ $labels.consumergroup }} read them",
        "In {{ $value }} partitions of {{ $labels.topic }} the committed offset is below the start of the log.",
    ),
)
