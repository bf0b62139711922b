"""Imports from kio, the library with the schemas of Kafka's messages.

If hypothesis is installed, as in many test environments, kio imports hypothesis and registers strategies, which takes
two seconds. Moldau does not need these strategies, so this module hides hypothesis while kio is imported.
"""

import importlib
import sys


def _load_without_hypothesis() -> None:
    if "kio.static.primitive" in sys.modules:
        return
    present = sys.modules.get("hypothesis")
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        if present is None:
            del sys.modules["hypothesis"]
        else:
            sys.modules["hypothesis"] = present


_load_without_hypothesis()

# ruff: noqa: E402
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.k_raft_version_record.v0.data import KRaftVersionRecord
from kio.schema.leader_change_message.v0 import data as leader_change_v0
from kio.schema.leader_change_message.v1 import data as leader_change_v1
from kio.schema.snapshot_footer_record.v0.data import SnapshotFooterRecord
from kio.schema.snapshot_header_record.v0.data import SnapshotHeaderRecord
from kio.schema.voters_record.v0 import data as voters_record
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

__all__ = [
    "EntityType",
    "ErrorCode",
    "KRaftVersionRecord",
    "SerialError",
    "SnapshotFooterRecord",
    "SnapshotHeaderRecord",
    "api_key_map",
    "entity_reader",
    "entity_writer",
    "leader_change_v0",
    "leader_change_v1",
    "load_payload_module",
    "schema_name_map",
    "voters_record",
]
