"""AlterPartition: a partition leader proposes a new ISR to the controller. Only nodes send this request.

Only v3 is served, because it is the first version with the broker epochs of the ISR. Responds when the change is
committed. Errors:

- INVALID_UPDATE_VERSION if the partition epoch is outdated.
- FENCED_LEADER_EPOCH if the leader epoch is outdated.
- INELIGIBLE_REPLICA if a replica must not join the ISR.
- NEW_LEADER_ELECTED if the change succeeded and completed a reassignment, so that another broker is the leader now.
"""

from uuid import UUID

from moldau.controller.requests import IsrChange, IsrChangeResult
from moldau.error_codes import error_code
from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.wire.messages import AlterPartitionRequest, AlterPartitionResponse, AlterPartitionResponsePartitionData

_ZERO_UUID = UUID(int=0)


@handles(versions=(3, 3), error_response=top_level_error, inter_broker=True)
async def alter_partition(
    request: AlterPartitionRequest, session: RequestContext, broker: Broker
) -> AlterPartitionResponse:
    changes = [
        IsrChange(
            topic.topic_id or _ZERO_UUID,
            each.partition_index,
            each.leader_epoch,
            each.partition_epoch,
            tuple((replica.broker_id, replica.broker_epoch) for replica in each.new_isr_with_epochs),
            bool(each.leader_recovery_state),
        )
        for topic in request.topics
        for each in topic.partitions
    ]
    results = await broker.controller.alter_partition(request.broker_id, request.broker_epoch, changes)
    by_topic: dict[UUID, list[AlterPartitionResponsePartitionData]] = {}
    for result in results:
        by_topic.setdefault(result.topic_id, []).append(_partition_response(result))
    return {"topics": [{"topic_id": topic_id, "partitions": responses} for topic_id, responses in by_topic.items()]}


def _partition_response(result: IsrChangeResult) -> AlterPartitionResponsePartitionData:
    return {
        "partition_index": result.partition,
        "error_code": error_code(result.error),
        "leader_id": result.leader,
        "leader_epoch": result.leader_epoch,
        "isr": result.isr,
        "leader_recovery_state": int(result.is_recovering),
        "partition_epoch": result.partition_epoch,
    }
