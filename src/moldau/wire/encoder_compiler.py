"""Compiler of message encoders, and the functions that generated encoders call.

An encoder is one function that encodes a tree of dicts and appends the result to a buffer. Nested structs are inlined.
One call packs adjacent fields of fixed size.
"""

from collections.abc import Callable
from struct import Struct, calcsize
from typing import Any

from moldau.wire.decoder_runtime import ZERO_UUID
from moldau.wire.schema import REQUIRED, SchemaField, is_flexible, schema_fields
from moldau.wire.source_builder import FIXED_SIZE_FORMATS, Run, SourceBuilder, compile_function

WriteFunction = Callable[[bytearray, Any], None]

_INT32 = Struct(">i")
_BYTES = (bytes, bytearray, memoryview)


def write_unsigned_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_tag(out: bytearray, tag: int, write: WriteFunction, value: Any) -> None:
    body = bytearray()
    write(body, value)
    write_unsigned_varint(out, tag)
    write_unsigned_varint(out, len(body))
    out += body


def write_records(out: bytearray, value: Any) -> None:
    """Appends record data: None, bytes, or `StoredRecords`, which the response frame includes by reference."""
    if value is None or isinstance(value, _BYTES):
        out += _INT32.pack(-1 if value is None else len(value))
        out += value or b""
    else:
        out += _INT32.pack(value.size)
        out.splice(value)  # type: ignore[attr-defined]


def write_compact_records(out: bytearray, value: Any) -> None:
    if value is None or isinstance(value, _BYTES):
        write_unsigned_varint(out, 0 if value is None else len(value) + 1)
        out += value or b""
    else:
        write_unsigned_varint(out, value.size + 1)
        out.splice(value)  # type: ignore[attr-defined]


def compile_encoder(entity: type) -> WriteFunction:
    names = globals() | {"ZERO_UUID": ZERO_UUID}
    write: WriteFunction = compile_function(encoder_source(entity), f"write_{entity.__name__}", entity, names)
    return write


def encoder_source(entity: type) -> str:
    source = SourceBuilder(_write_pack)
    _write_definitions(source, entity)
    _write_struct_function(source, entity)
    return source.text()


def _write_pack(source: SourceBuilder, run: Run) -> None:
    format_ = "".join(each for _, each in run)
    if format_ == "x":
        source.line("out.append(0)")
    else:
        values = ", ".join(value for value, each in run if each != "x")
        source.line(f"out += {source.struct_method('pack', format_)}({values})")


def _write_definitions(source: SourceBuilder, entity: type) -> None:
    """Writes the functions that encode the tagged fields of an entity and of the entities nested in it."""
    if not source.define_once(f"tags of {entity.__name__}"):
        return
    for field in schema_fields(entity):
        if field.entity is not None:
            _write_definitions(source, field.entity)
        if field.tag is not None and not _is_fixed_size(field):
            _write_tag_function(source, entity, field)


def _tag_function(entity: type, field: SchemaField) -> str:
    if field.entity is not None and not field.is_array:
        return f"write_{field.entity.__name__}"
    return f"write_{entity.__name__}_{field.name}"


def _write_tag_function(source: SourceBuilder, entity: type, field: SchemaField) -> None:
    if field.entity is not None and not field.is_array:
        # A tagged struct has no null marker, because an absent tag means null.
        _write_struct_function(source, field.entity)
        return
    with source.block(f"def {_tag_function(entity, field)}(out, value):"):
        _write_field(source, field, "value", flexible=True, depth=0)
        source.end_run()


def _write_struct_function(source: SourceBuilder, entity: type) -> None:
    name = f"write_{entity.__name__}"
    if source.define_once(name):
        with source.block(f"def {name}(out, tree):"):
            _write_struct(source, entity, "tree", depth=0)


def _write_struct(source: SourceBuilder, entity: type, tree: str, depth: int) -> None:
    fields, flexible = schema_fields(entity), is_flexible(entity)
    for field in fields:
        if field.tag is None:
            _write_field(source, field, _value(source, entity, field, tree), flexible, depth)
    tagged = [field for field in fields if field.tag is not None]
    if tagged:
        source.end_run()
        _write_tags_present(source, entity, tagged, tree)
    elif flexible:
        source.add_fixed("", "x")
    source.end_run()
    if not fields and not flexible:
        source.line("pass")


def _value(source: SourceBuilder, entity: type, field: SchemaField, tree: str) -> str:
    """Returns the expression for a field's value. The expression raises KeyError if a required value is missing."""
    if field.default is REQUIRED:
        return f'{tree}["{field.name}"]'
    if field.default is None:
        return f'{tree}.get("{field.name}")'
    if isinstance(field.default, list):
        return f'{tree}.get("{field.name}", {tuple(field.default)})'
    return f'{tree}.get("{field.name}", {_default(source, entity, field)})'


def _default(source: SourceBuilder, entity: type, field: SchemaField) -> str:
    if isinstance(field.default, dict):
        return source.constant(f"no_{entity.__name__}_{field.name}", repr(field.default))
    return repr(field.default)


def _write_tags_present(source: SourceBuilder, entity: type, tagged: list[SchemaField], tree: str) -> None:
    assert len(tagged) <= 0x7F, "the number of tags fits into one byte"
    source.line("tags, tags_position = 0, len(out)")
    source.line("out.append(0)")
    for field in sorted(tagged, key=lambda field: field.tag or 0):
        source.line(f'value = {tree}.get("{field.name}")')
        with source.block(f"if value is not None and value != {_default(source, entity, field)}:"):
            source.line("tags += 1")
            _write_tag(source, entity, field)
    with source.block("if tags:"):
        source.line("out[tags_position] = tags")


def _write_tag(source: SourceBuilder, entity: type, field: SchemaField) -> None:
    if not _is_fixed_size(field):
        source.line(f"write_tag(out, {field.tag}, {_tag_function(entity, field)}, value)")
        return
    head = bytearray()
    write_unsigned_varint(head, field.tag or 0)
    write_unsigned_varint(head, calcsize(f">{FIXED_SIZE_FORMATS[field.kafka_type]}"))
    source.add_fixed(repr(bytes(head)), f"{len(head)}s")
    _write_primitive(source, field.kafka_type, "value", flexible=True)
    source.end_run()


def _is_fixed_size(field: SchemaField) -> bool:
    return not field.is_array and field.entity is None and field.kafka_type in FIXED_SIZE_FORMATS


def _write_field(source: SourceBuilder, field: SchemaField, value: str, flexible: bool, depth: int) -> None:
    if field.is_array:
        _write_array(source, field, value, flexible, depth + 1)
    elif field.entity is None:
        _write_primitive(source, field.kafka_type, value, flexible)
    else:
        source.end_run()
        inner = f"tree_{depth + 1}"
        source.line(f"{inner} = {value}")
        if field.nullable:
            with source.block(f"if {inner} is None:"):
                source.line("out.append(0xFF)")
            with source.block("else:"):
                source.line("out.append(1)")
                _write_struct(source, field.entity, inner, depth + 1)
        else:
            _write_struct(source, field.entity, inner, depth + 1)


def _write_array(source: SourceBuilder, field: SchemaField, value: str, flexible: bool, depth: int) -> None:
    source.line(f"items = {value}")
    if flexible:
        source.end_run()
        with source.block("if items is None:"):
            source.line("out.append(0)")
        with source.block("else:"):
            _write_compact_size(source, "items")
            _write_items(source, field, flexible, depth)
    else:
        source.add_fixed("-1 if items is None else len(items)", "i")
        source.end_run()
        with source.block("if items:"):
            _write_items(source, field, flexible, depth)


def _write_items(source: SourceBuilder, field: SchemaField, flexible: bool, depth: int) -> None:
    item = f"tree_{depth}" if field.entity else "item"
    with source.block(f"for {item} in items:"):
        if field.entity is not None:
            _write_struct(source, field.entity, item, depth)
        else:
            _write_primitive(source, field.kafka_type, item, flexible)
            source.end_run()


def _write_primitive(source: SourceBuilder, kafka_type: str, value: str, flexible: bool) -> None:
    if kafka_type == "uuid":
        source.add_fixed(f"ZERO_UUID if (uuid := {value}) is None else uuid.bytes", FIXED_SIZE_FORMATS["uuid"])
    elif kafka_type in FIXED_SIZE_FORMATS:
        source.add_fixed(value, FIXED_SIZE_FORMATS[kafka_type])
    elif kafka_type == "records":
        source.end_run()
        source.line(f"{'write_compact_records' if flexible else 'write_records'}(out, {value})")
    elif kafka_type in ("string", "bytes"):
        source.line(f"raw = {value}")
        _write_sized(source, kafka_type == "string", flexible)
    else:
        raise LookupError(f"type {kafka_type!r} is not supported")


def _write_sized(source: SourceBuilder, is_text: bool, flexible: bool) -> None:
    if flexible:
        source.end_run()
        with source.block("if raw is None:"):
            source.line("out.append(0)")
        with source.block("else:"):
            if is_text:
                source.line("raw = raw.encode()")
            _write_compact_size(source, "raw")
            source.line("out += raw")
    else:
        if is_text:
            with source.block("if raw is not None:"):
                source.line("raw = raw.encode()")
        source.add_fixed("-1 if raw is None else len(raw)", "h" if is_text else "i")
        source.end_run()
        with source.block("if raw:"):
            source.line("out += raw")


def _write_compact_size(source: SourceBuilder, name: str) -> None:
    source.line(f"size = len({name}) + 1")
    with source.block("if size > 0x7F:"):
        source.line("write_unsigned_varint(out, size)")
    with source.block("else:"):
        source.line("out.append(size)")
