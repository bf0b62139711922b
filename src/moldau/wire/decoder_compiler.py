"""Compiler of message decoders.

A decoder is one function in which nested structs are inlined. One call unpacks adjacent fields of fixed size together
with the length of the field that follows.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moldau.wire import decoder_runtime
from moldau.wire.decoder_runtime import SAFE_STRING_BYTES, ReadFunction
from moldau.wire.messages import ABSENT_FIELDS
from moldau.wire.schema import SchemaField, is_flexible, schema_fields
from moldau.wire.source_builder import FIXED_SIZE_FORMATS, Run, SourceBuilder, compile_function

_NAMES = {**vars(decoder_runtime), "Struct": struct.Struct, "unpack_from": struct.unpack_from}
"""The globals of generated decoders."""


def compile_decoder(entity: type) -> ReadFunction:
    read: ReadFunction = compile_function(decoder_source(entity), f"read_{entity.__name__}", entity, _NAMES)
    return read


def decoder_source(entity: type) -> str:
    source = SourceBuilder(_write_unpack)
    _write_definitions(source, entity)
    _write_struct_function(source, entity)
    return source.text()


def _write_unpack(source: SourceBuilder, run: Run) -> None:
    targets, formats = zip(*run, strict=True)
    format_ = "".join(formats)
    if format_ == "B":
        source.line(f"{targets[0]} = data[position]")
    else:
        comma = "," if len(targets) == 1 else ""
        unpack = source.struct_method("unpack_from", format_)
        source.line(f"{', '.join(targets)}{comma} = {unpack}(data, position)")
    source.line(f"position += {struct.calcsize('>' + format_)}")
    for target, each in run:
        if each == FIXED_SIZE_FORMATS["uuid"]:
            source.line(f"{target} = decode_uuid({target})")


def _write_definitions(source: SourceBuilder, entity: type) -> None:
    """Writes the message classes of an entity and its nested entities, and functions that read their tagged fields."""
    if not source.define_once(f"class {entity.__name__}"):
        return
    fields = schema_fields(entity)
    for field in fields:
        if field.entity is not None:
            _write_definitions(source, field.entity)
    with source.block(f"class {entity.__name__}(Message):"):
        # Skip Message.__init__, because it would take as long as decoding the struct.
        source.line("__init__ = object.__init__")
        for name, value in _absent_fields(entity).items():
            source.line(f"{name} = {_literal(value)}")
    known = [
        f'{field.tag}: ("{field.name}", {_write_tag_function(source, entity, field)})'
        for field in fields
        if field.tag is not None
    ]
    if is_flexible(entity):
        source.line(f"tags_of_{entity.__name__} = {{{', '.join(known)}}}")


def _write_tag_function(source: SourceBuilder, entity: type, field: SchemaField) -> str:
    """Writes the function that reads a tagged field. Returns the name of the function."""
    if field.entity is not None and not field.is_array:
        # A tagged struct has no null marker, because an absent tag means null.
        return _write_struct_function(source, field.entity)
    name = f"read_{entity.__name__}_{field.name}"
    with _function(source, name, "value"):
        _write_field(source, field, "value", flexible=True, depth=0)
        source.end_run()
    return name


def _write_struct_function(source: SourceBuilder, entity: type) -> str:
    name = f"read_{entity.__name__}"
    if source.define_once(name):
        with _function(source, name, "message"):
            _write_struct(source, entity, "message", depth=0)
    return name


@contextmanager
def _function(source: SourceBuilder, name: str, result: str) -> Iterator[None]:
    with source.block(f"def {name}(frame, data, position, elements_left):"):
        source.line("end = len(data)")
        yield
        source.line(f"return {result}, position, elements_left")


def _write_struct(source: SourceBuilder, entity: type, target: str, depth: int) -> None:
    fields, flexible = schema_fields(entity), is_flexible(entity)
    source.line(f"{target} = {entity.__name__}()")
    for field in fields:
        if field.tag is not None:
            source.line(f"{target}.{field.name} = {_default(source, entity, field)}")
    for field in fields:
        if field.tag is None:
            _write_field(source, field, f"{target}.{field.name}", flexible, depth)
    if flexible:
        source.add_fixed("tags", "B")
    source.end_run()
    if flexible:
        with source.block("if tags:"):
            source.line(
                f"position, elements_left = read_tags("
                f"frame, data, position - 1, elements_left, tags_of_{entity.__name__}, vars({target}))"
            )


def _default(source: SourceBuilder, entity: type, field: SchemaField) -> str:
    if field.entity is None or not isinstance(field.default, dict):
        return repr(field.default)
    return source.constant(f"no_{entity.__name__}_{field.name}", _literal(field.default))


def _literal(default: Any) -> str:
    if not isinstance(default, dict):
        return repr(default)
    return f"Message({', '.join(f'{name}={value!r}' for name, value in default.items())})"


def _absent_fields(entity: type) -> dict[str, Any]:
    """Returns the fields that only other served versions of a request struct have, with the values they get here."""
    package, _, kind = entity.__module__.rpartition(".")
    if kind != "request":
        return {}
    values = ABSENT_FIELDS.get(f"{package.split('.')[2]}.{entity.__name__}", {})
    present = {field.name for field in schema_fields(entity)}
    return {name: value for name, value in values.items() if name not in present}


def _write_field(source: SourceBuilder, field: SchemaField, target: str, flexible: bool, depth: int) -> None:
    if field.is_array:
        _write_size(source, "count", "i", "varint", flexible)
        if flexible:
            source.line("count -= 1")
        with _unless_null(source, "count == -1", target, field.nullable):
            _write_array(source, field, target, flexible, depth + 1)
    elif field.entity is None:
        _write_primitive(source, field.kafka_type, target, flexible, field.nullable)
    else:
        if field.nullable:
            source.add_fixed("marker", "B")
        source.end_run()
        with _unless_null(source, "marker == 0xFF", target, field.nullable):
            _write_struct(source, field.entity, f"inner_{depth + 1}", depth + 1)
            source.line(f"{target} = inner_{depth + 1}")


@contextmanager
def _unless_null(source: SourceBuilder, is_null: str, target: str, nullable: bool) -> Iterator[None]:
    if nullable:
        with source.block(f"if {is_null}:"):
            source.line(f"{target} = None")
        with source.block("else:"):
            yield
    else:
        yield


def _write_size(source: SourceBuilder, name: str, letter: str, read_long: str, flexible: bool) -> None:
    """Writes code that reads a length or count. The same unpack call reads the fixed-size fields before it.

    A length of -1 means null. In flexible versions the value read is the length plus one, so 0 means null.
    """
    source.add_fixed(name, "B" if flexible else letter)
    source.end_run()
    if flexible:
        with source.block(f"if {name} > 0x7F:"):
            source.line(f"{name}, position = {read_long}(data, position - 1)")


def _write_array(source: SourceBuilder, field: SchemaField, target: str, flexible: bool, depth: int) -> None:
    size_min = _item_size_min(field, flexible)
    source.line("elements_left -= count")
    with source.block(f"if count < 0 or count * {size_min} > end - position or elements_left < 0:"):
        source.line(f"raise too_many_elements_error(count, {size_min}, end - position)")
    if field.entity is None and field.kafka_type in FIXED_SIZE_FORMATS and field.kafka_type != "uuid":
        letter = FIXED_SIZE_FORMATS[field.kafka_type]
        source.line(f'{target} = list(unpack_from(f">{{count}}{letter}", data, position)) if count else []')
        source.line(f"position += count * {size_min}")
        return
    items, item = f"items_{depth}", f"item_{depth}"
    source.line(f"{target} = {items} = []")
    with source.block("for _ in range(count):"):
        if field.entity is None:
            _write_primitive(source, field.kafka_type, item, flexible, nullable=False)
            source.end_run()
        else:
            _write_struct(source, field.entity, item, depth)
        source.line(f"{items}.append({item})")


def _write_primitive(source: SourceBuilder, kafka_type: str, target: str, flexible: bool, nullable: bool) -> None:
    if kafka_type in FIXED_SIZE_FORMATS:
        source.add_fixed(target, FIXED_SIZE_FORMATS[kafka_type])
        return
    if kafka_type == "string":
        _write_size(source, "size", "h", "compact_string_length", flexible)
        # The generated code inlines `decode_string` for short strings, to avoid a call.
        value = (
            f'str(data[position:stop], "utf-8", "replace") if stop - position <= {SAFE_STRING_BYTES} '
            "else decode_string(data[position:stop])"
        )
    elif kafka_type in ("bytes", "records"):
        _write_size(source, "size", "i", "varint", flexible)
        value = "frame[position:stop]"
    else:
        raise LookupError(f"type {kafka_type!r} is not supported")
    with _unless_null(source, "size == 0" if flexible else "size == -1", target, nullable):
        source.line("stop = position + size - 1" if flexible else "stop = position + size")
        with source.block("if stop < position or stop > end:"):
            source.line("raise too_short_error(stop - position, end - position)")
        source.line(f"{target} = {value}")
        source.line("position = stop")


# Minimum encoded sizes, which limit the element count that a message may claim


def _struct_size_min(entity: type) -> int:
    flexible = is_flexible(entity)
    return flexible + sum(_size_min(field, flexible) for field in schema_fields(entity) if field.tag is None)


def _size_min(field: SchemaField, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if field.entity is not None and field.nullable:
        return 1
    return _item_size_min(field, flexible)


def _item_size_min(field: SchemaField, flexible: bool) -> int:
    if field.entity is not None:
        return _struct_size_min(field.entity)
    if field.kafka_type in FIXED_SIZE_FORMATS:
        return struct.calcsize(">" + FIXED_SIZE_FORMATS[field.kafka_type])
    return 1 if flexible else 2 if field.kafka_type == "string" else 4
