"""Records of `__transaction_state` as plain values. `formats.py` encodes and decodes the records."""

from typing import NamedTuple

from moldau.transactions.transaction_group import TransactionGroupMetadata
from moldau.transactions.transaction_metadata import TV0, TransactionMetadata


class TransactionRecord(NamedTuple):
    transactional_id: str
    metadata: TransactionMetadata | None
    """None for a tombstone."""
    transaction_version: int = TV0
    """The finalized level of transaction.version when the record was written. It determines the format."""


class TransactionGroupRecord(NamedTuple):
    group_id: str
    metadata: TransactionGroupMetadata | None
    """None for a tombstone."""


StateRecord = TransactionRecord | TransactionGroupRecord
