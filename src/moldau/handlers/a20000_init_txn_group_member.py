"""InitTxnGroupMember: starts a member's transaction in a batch of a transaction group (an API of Moldau).

If the batch is committed already, the member gets no producer id and must write nothing. Errors: PRODUCER_FENCED if a
later run of the group has begun, INVALID_TXN_STATE if a later batch is committed, and those of InitProducerId.
"""

from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.transactions.requests import BATCH_COMMITTED, InitGroupMemberRequest
from moldau.transactions.transaction_metadata import ProducerClient
from moldau.wire.messages import InitTxnGroupMemberRequest, InitTxnGroupMemberResponse


@handles(versions=(0, 0), error_response=top_level_error)
async def init_txn_group_member(
    request: InitTxnGroupMemberRequest, session: RequestContext, broker: Broker
) -> InitTxnGroupMemberResponse:
    producer = await broker.transactions.init_group_member(
        InitGroupMemberRequest(
            group_id=request.group_id,
            batch_id=request.batch_id,
            run_id=request.run_id,
            member=request.member,
            timeout_ms=request.transaction_timeout_ms,
            client=ProducerClient(session.client_id or "", session.client_host),
        )
    )
    if producer is BATCH_COMMITTED:
        return {"is_committed": True}
    return {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
