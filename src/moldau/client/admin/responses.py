"""Results of admin requests, decoded from the responses of brokers."""

from moldau.client.admin.requester import to_error
from moldau.client.admin.types import (
    ConfigEntry,
    ConfigResource,
    ConfigSynonym,
    GroupDescription,
    LogDir,
    LogDirReplica,
    MemberDescription,
    ProducerState,
    QuorumReplica,
    ResourceType,
    TransactionDescription,
)
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import TopicPartition, iterate_partitions
from moldau.wire.codec import DecodeError, Message
from moldau.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription


def parse_resource(response: Message) -> ConfigResource:
    return ConfigResource(ResourceType(response.resource_type), response.resource_name)


def parse_config_entry(config: Message) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        config.config_source,
        config.read_only,
        config.is_sensitive,
        tuple(ConfigSynonym(each.name, each.value, each.source) for each in config.synonyms),
        config.get("documentation"),
    )


def parse_log_dir(response: Message) -> LogDir:
    return LogDir(
        response.log_dir,
        to_error(response.error_code),
        {
            partition: LogDirReplica(each.partition_size, each.offset_lag, each.is_future_key)
            for partition, each in iterate_partitions(response.topics)
        },
        response.get("total_bytes", -1),
        response.get("usable_bytes", -1),
    )


def parse_replica(response: Message) -> QuorumReplica:
    return QuorumReplica(
        response.replica_id,
        response.replica_directory_id,
        response.log_end_offset,
        response.last_fetch_timestamp,
        response.last_caught_up_timestamp,
    )


def parse_group(group: Message, node: int) -> GroupDescription | KafkaError:
    error = to_error(group.error_code, group.get("error_message") or f"the group {group.group_id!r}")
    if error is not None:
        return error
    if group.group_state == "Dead":
        # Before version 6 of the response, this state means that the group does not exist.
        return KafkaError(ErrorCode.group_id_not_found, f"the group {group.group_id!r}")
    is_consumer = group.protocol_type == PROTOCOL_TYPE
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        tuple(_parse_member(each, is_consumer) for each in group.members),
        node,
    )


def parse_transaction(transaction: Message, node: int) -> TransactionDescription | KafkaError:
    transactional_id = transaction.transactional_id
    error = to_error(transaction.error_code, f"the transactional id {transactional_id!r}")
    if error is not None:
        return error
    return TransactionDescription(
        transactional_id,
        node,
        transaction.transaction_state,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.transaction_timeout,
        transaction.transaction_start_time,
        tuple(TopicPartition(each.topic, index) for each in transaction.topics for index in each.partitions),
        transaction.client_id,
        transaction.client_host,
    )


def parse_producer(producer: Message) -> ProducerState:
    start_offset = producer.current_txn_start_offset
    return ProducerState(
        producer.producer_id,
        producer.producer_epoch,
        producer.last_sequence,
        producer.last_timestamp,
        producer.coordinator_epoch,
        None if start_offset < 0 else start_offset,
        producer.transactional_id,
        producer.client_id,
        producer.client_host,
    )


def _parse_member(member: Message, is_consumer: bool) -> MemberDescription:
    topics: tuple[str, ...] = ()
    assignment: tuple[TopicPartition, ...] = ()
    if is_consumer:
        try:
            # The metadata can be empty, for example while members join.
            if member.member_metadata:
                topics = decode_subscription(member.member_metadata).topics
            partitions = decode_assignment(member.member_assignment).partitions
            assignment = tuple(TopicPartition(*each) for each in partitions)
        except DecodeError:
            # Other clients may use another format. Return the member without the data that cannot be decoded.
            pass
    return MemberDescription(
        member.member_id, member.get("group_instance_id"), member.client_id, member.client_host, topics, assignment
    )
