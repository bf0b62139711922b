"""EndTxnGroup: commits or aborts a batch of a transaction group by one decision (an API of Moldau).

A commit is refused as a whole if the transaction of one listed member is not open with the listed producer id and
epoch: PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING or INVALID_TXN_STATE. The commit of a committed batch succeeds. The
response is sent when the outcome is decided, before the markers are written to the partitions.
"""

from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.transactions.requests import EndGroupRequest, GroupMember
from moldau.wire.messages import EndTxnGroupRequest, EndTxnGroupResponse


@handles(versions=(0, 0), error_response=top_level_error)
async def end_txn_group(request: EndTxnGroupRequest, session: RequestContext, broker: Broker) -> EndTxnGroupResponse:
    await broker.transactions.end_group(
        EndGroupRequest(
            group_id=request.group_id,
            batch_id=request.batch_id,
            run_id=request.run_id,
            commit=request.committed,
            is_last=request.is_last,
            members=tuple(GroupMember(each.member, each.producer_id, each.producer_epoch) for each in request.members),
        )
    )
    return {}
