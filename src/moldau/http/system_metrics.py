"""Metrics of connections, memory budgets, the disk, the process and its event loop."""

from collections.abc import Iterator, Sequence
from itertools import islice

from moldau.metrics.exposition import PAUSE, MetricFamily, MetricType, Sample, counter, format_labels, gauge
from moldau.metrics.histogram import QUANTILES
from moldau.network.socket_server import SocketServer
from moldau.observe.logging import get_logger
from moldau.platform.cpu import thread_cpu_s
from moldau.platform.process import count_open_files, process_statistics
from moldau.server.api import Broker

CONNECTIONS_PER_SLICE = 500

log = get_logger(__name__)


def network_families(listeners: Sequence[SocketServer]) -> Iterator[MetricFamily | None]:
    labels = {each: format_labels({"listener": each.name}) for each in listeners}
    prefix = "kafka_server_socket_server_metrics"
    yield gauge(
        f"{prefix}_connection_count",
        "Open connections.",
        [Sample(len(each.connections), labels[each]) for each in listeners],
    )
    yield counter(
        f"{prefix}_connection_creation_total",
        "Connections that were opened.",
        [Sample(each.opened_count, labels[each]) for each in listeners],
    )
    yield counter(
        f"{prefix}_connection_close_total",
        "Connections that were closed.",
        [Sample(each.opened_count - len(each.connections), labels[each]) for each in listeners],
    )
    yield counter(
        "moldau_network_rejected_connections_total",
        "Connections that were rejected because too many were open.",
        [Sample(each.rejected_count, labels[each]) for each in listeners],
    )
    pending = in_flight = 0
    for listener in listeners:
        remaining = iter(list(listener.connections))
        while part := list(islice(remaining, CONNECTIONS_PER_SLICE)):
            pending += sum(each.pending_count for each in part)
            in_flight += sum(each.in_flight_count for each in part)
            yield PAUSE
    yield gauge(
        "kafka_network_requestchannel_requestqueuesize", "Requests that were received and have not started.", pending
    )
    yield gauge(
        "moldau_network_requests_in_flight", "Requests that have started and whose responses are not sent.", in_flight
    )
    # Listeners may share their limits.
    pools = {id(each.memory_pool): each.memory_pool for each in listeners}.values()
    partial_frames = {id(each.partial_frames): each.partial_frames for each in listeners}.values()
    yield gauge(
        "kafka_network_socketserver_memorypoolused",
        "Bytes of requests in flight.",
        sum(each.used_bytes for each in pools),
    )
    yield gauge(
        "kafka_network_socketserver_memorypoolavailable",
        "Bytes of further requests that can be in flight (half of queued.max.request.bytes for all).",
        sum(each.available_bytes for each in pools),
    )
    yield gauge(
        "moldau_network_partial_request_bytes",
        "Bytes of large requests that are partly received.",
        sum(each.used_bytes for each in partial_frames),
    )
    yield gauge(
        "moldau_network_connections_waiting_for_memory",
        "Connections that are not read because too many bytes of requests are in flight.",
        sum(each.waiting_count for each in pools),
    )


def disk_families(broker: Broker) -> Iterator[MetricFamily]:
    disk, settings = broker.platform.disk, broker.settings.static
    durations = broker.replica_manager.store.sync_durations
    yield MetricFamily(
        "moldau_disk_sync_duration_seconds",
        MetricType.HISTOGRAM,
        "Duration of fsyncs, or of commits in Postgres.",
        durations.samples({}),
    )
    quantiles = zip(QUANTILES, durations.quantiles_ms(), strict=False)
    yield MetricFamily(
        "kafka_log_logflushstats_logflushrateandtimems",
        MetricType.SUMMARY,
        "Quantiles of the duration of recent fsyncs, in milliseconds, and the number of fsyncs.",
        [
            *(Sample(value, format_labels({"quantile": quantile})) for quantile, value in quantiles),
            Sample(durations.count, suffix="_count"),
        ],
    )
    if settings.store == "files":
        try:
            total, free = disk.space(settings.data_dir)
        except OSError as error:
            # The disk has failed. The other metrics show that, so they must not be lost with these two.
            log.warning("the size of the volume is unknown", data_dir=settings.data_dir, reason=str(error))
            return
        yield gauge("moldau_disk_size_bytes", "Size of the volume of the data directory.", total)
        yield gauge("moldau_disk_free_bytes", "Bytes that the node can still write on this volume.", free)


def process_families(broker: Broker) -> Iterator[MetricFamily | None]:
    broker.loop_cpu.update(broker.platform.clock.monotonic_us(), thread_cpu_s())
    # One thread receives, handles and sends, so both names of Kafka have the same value.
    idle = min(1.0, max(0.0, 1 - broker.loop_cpu.per_second))
    for name in ("kafka_network_socketserver_networkprocessor", "kafka_server_kafkarequesthandlerpool_requesthandler"):
        yield gauge(f"{name}avgidle_percent", "Share of the time that the event loop is idle, from 0 to 1.", idle)
    statistics = process_statistics()
    yield counter("moldau_event_loop_cpu_seconds_total", "CPU time of the event loop.", thread_cpu_s())
    yield counter("process_cpu_seconds_total", "CPU time of all threads.", statistics.cpu_s)
    optional = (
        ("process_resident_memory_bytes", "Resident memory.", statistics.resident_bytes),
        ("process_virtual_memory_bytes", "Virtual memory.", statistics.virtual_bytes),
        ("process_start_time_seconds", "Start of the process in seconds since 1970.", statistics.start_time_s),
    )
    for name, text, value in optional:
        if value is not None:
            yield gauge(name, text, value)
    yield gauge("process_max_fds", "Maximum number of open files.", statistics.open_files_max)
    open_files = -1
    for count in count_open_files():
        open_files = count
        yield PAUSE
    if open_files >= 0:
        yield gauge("process_open_fds", "Open files.", open_files)
