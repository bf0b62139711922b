"""OffsetForLeaderEpoch: where a leader epoch ended, so that whoever followed an old leader knows where to
cut.

Versions 2-4 mean the same; 3 brought the replica id, 4 the flexible encoding.
"""

from typing import Any

from moldau.errors import MoldauError
from moldau.requests.broker import Broker
from moldau.requests.errors import error_code
from moldau.requests.lookup import find_partition
from moldau.requests.registry import handles
from moldau.requests.session import Session
from moldau.wire.api_keys import ApiKey


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4))
async def offset_for_leader_epoch(request: Any, session: Session, broker: Broker) -> Any:
    return {
        "throttle_time": 0,
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [_end_of_epoch(broker, topic.topic, each) for each in topic.partitions],
            }
            for topic in request.topics
        ],
    }


def _end_of_epoch(broker: Broker, topic: str, asked: Any) -> dict[str, Any]:
    code, epoch, end_offset = 0, -1, -1
    try:
        partition = find_partition(broker, topic, asked.partition)
        partition.leader(asked.current_leader_epoch)
        epoch, end_offset = partition.log.epochs.epoch_end(asked.leader_epoch, partition.log.end_offset)
    except MoldauError as error:
        code = error_code(error)
    return {"error_code": code, "partition": asked.partition, "leader_epoch": epoch, "end_offset": end_offset}
