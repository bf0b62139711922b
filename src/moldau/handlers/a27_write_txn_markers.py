"""WriteTxnMarkers: writes the outcome of transactions to partitions that this broker leads.

Transaction coordinators send this request, and Kafka's admin client, to end a hanging transaction. Each partition
succeeds or fails independently.

Versions: 2 added the transaction version of a marker (KIP-1228).
"""

from moldau.error_codes import error_code
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.late_requests import RequestStream
from moldau.transactions.marker_writer import EndTransactionMarker, MarkersToWrite
from moldau.transactions.transaction_metadata import TV2, TopicPartition
from moldau.wire.messages import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestWritableTxnMarker,
    WriteTxnMarkersResponse,
    WriteTxnMarkersResponseWritableTxnMarkerResult,
)


@handles(versions=(1, 2))
async def write_txn_markers(
    request: WriteTxnMarkersRequest, session: RequestContext, broker: Broker
) -> WriteTxnMarkersResponse:
    for marker in request.markers:
        if marker.transaction_version < TV2:
            broker.late_requests.check(
                RequestStream.MARKERS,
                marker.producer_id,
                marker.producer_epoch,
                session.connection,
                coordinator_epoch=marker.coordinator_epoch,
            )
    markers = [_markers_to_write(each) for each in request.markers]
    # As in Kafka, markers of one producer share their results.
    codes: dict[int, dict[TopicPartition, int]] = {}
    for (written, _), errors in zip(markers, await broker.marker_writer.write(markers), strict=True):
        codes.setdefault(written.producer_id, {}).update({each: error_code(error) for each, error in errors.items()})
    return {"markers": [_result(producer_id, each) for producer_id, each in codes.items()]}


def _markers_to_write(marker: WriteTxnMarkersRequestWritableTxnMarker) -> MarkersToWrite:
    partitions = dict.fromkeys((topic.name, index) for topic in marker.topics for index in topic.partition_indexes)
    return MarkersToWrite(
        EndTransactionMarker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            commit=marker.transaction_result,
            transaction_version=marker.transaction_version,
        ),
        tuple(partitions),
    )


def _result(producer_id: int, codes: dict[TopicPartition, int]) -> WriteTxnMarkersResponseWritableTxnMarkerResult:
    topics: dict[str, list[tuple[int, int]]] = {}
    for (name, index), code in codes.items():
        topics.setdefault(name, []).append((index, code))
    return {
        "producer_id": producer_id,
        "topics": [
            {"name": name, "partitions": [{"partition_index": index, "error_code": code} for index, code in partitions]}
            for name, partitions in topics.items()
        ],
    }
