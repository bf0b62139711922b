"""AddOffsetsToTxn: adds the partition with the committed offsets of a group to a transaction.

Versions: 2 added the error PRODUCER_FENCED, 3 the flexible encoding, 4 the error TRANSACTION_ABORTABLE. Clients with
TV2 do not send this request.
"""

from moldau.error_codes import error_code
from moldau.errors import MoldauError
from moldau.groups.offsets_topic import OFFSETS_TOPIC
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.late_requests import RequestStream
from moldau.server.producer_fencing import with_known_code
from moldau.transactions.requests import AddPartitionsRequest
from moldau.transactions.transaction_metadata import TV0
from moldau.wire.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

PRODUCER_FENCED_VERSION = 2


def error_response(request: AddOffsetsToTxnRequest, version: int, error: MoldauError) -> AddOffsetsToTxnResponse:
    return {"error_code": error_code(with_known_code(error, version, fenced_since=PRODUCER_FENCED_VERSION))}


@handles(versions=(0, 4), error_response=error_response)
async def add_offsets_to_txn(
    request: AddOffsetsToTxnRequest, session: RequestContext, broker: Broker
) -> AddOffsetsToTxnResponse:
    broker.late_requests.check(
        RequestStream.TRANSACTION, request.producer_id, request.producer_epoch, session.connection
    )
    # The partition must exist before it is added, because a missing partition counts as deleted.
    partition = await broker.groups.coordinator_partition(request.group_id)
    await broker.transactions.add_partitions(
        AddPartitionsRequest(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            partitions=frozenset({(OFFSETS_TOPIC, partition.index)}),
            client_version=TV0,
        )
    )
    return {}
