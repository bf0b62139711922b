"""What differs between two copies of a batch. No I/O."""

from moldau.records.batch import HEADER_SIZE, Batch
from moldau.records.compression import NONE
from moldau.records.record import UNDECODABLE_ERRORS, Record, iterate_records, section, spans

_HEADER_FIELDS = (
    "base_offset",
    "leader_epoch",
    "crc",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "count",
)
_RECORD_FIELDS = ("offset", "timestamp", "key", "value", "headers")


def describe_difference(batch: Batch, reference: Batch) -> str | None:
    """Returns what differs in `batch`, as specific as possible; None if both are equal. `reference` is sound."""
    own, right = bytes(batch.data), bytes(reference.data)
    if own == right:
        return None
    parts = [
        f"{name.replace('_', ' ')} {getattr(batch, name)} instead of {getattr(reference, name)}"
        for name in _HEADER_FIELDS
        if getattr(batch, name) != getattr(reference, name)
    ]
    if len(own) != len(right):
        parts.append(f"{len(own)} bytes instead of {len(right)}")
    elif own[HEADER_SIZE:] != right[HEADER_SIZE:]:
        position = next(index for index in range(HEADER_SIZE, len(own)) if own[index] != right[index])
        where = _record_at(reference, position) if reference.compression == NONE else ""
        parts.append(f"byte {position}{where} is 0x{own[position]:02x} instead of 0x{right[position]:02x}")
    record = _record_difference(batch, reference)
    if record is not None:
        parts.append(record)
    return ", ".join(parts)


def _record_at(reference: Batch, position: int) -> str:
    """Returns which record has the byte at `position` of an uncompressed batch."""
    try:
        for _, end, _, offset_delta, *_ in spans(reference, section(reference)):
            if position - HEADER_SIZE < end:
                return f" (in the record at offset {reference.base_offset + offset_delta})"
    except UNDECODABLE_ERRORS:
        # Brokers do not decode records when they are produced, so a sound batch may have undecodable ones.
        return ""
    return ""


def _record_difference(batch: Batch, reference: Batch) -> str | None:
    """Returns the first record that differs and how; None if no pair of decodable records does."""
    try:
        for own, right in zip(iterate_records(batch), iterate_records(reference), strict=False):
            if own != right:
                return f"the record at offset {right.offset} has another {_differing_fields(own, right)}"
    except UNDECODABLE_ERRORS:
        return None
    return None


def _differing_fields(own: Record, right: Record) -> str:
    return " and ".join(name for name in _RECORD_FIELDS if getattr(own, name) != getattr(right, name))
