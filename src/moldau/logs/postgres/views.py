"""Views and functions for people in the schema of a node: topics, records and committed offsets in plain SQL.

They read the tables of `schema.py` at each use and store nothing, so they cannot differ from the log. All names are
qualified with the schema, because users call them with any search_path.
"""

import hashlib
from string import Template
from typing import Any

import psycopg

RECORDS_MAX = 1000
"""The number of offsets that `records` covers if no end is given."""


async def create_views(cursor: psycopg.AsyncCursor[Any], schema: str) -> None:
    """Creates or replaces the views, unless they are up to date. The tables of the schema exist.

    A view cannot be replaced while a query uses it, so replacing it at each start could block the node.
    """
    quoted = '"' + schema.replace('"', '""') + '"'
    statements = Template(_VIEWS).substitute(schema=quoted, records_max=RECORDS_MAX, **_VARINT_READERS)
    version = f"Version {hashlib.sha256(statements.encode()).hexdigest()[:16]} of the views."
    await cursor.execute(Template(_FIND_VERSION).substitute(schema=quoted.replace("'", "''")).encode())
    if await cursor.fetchone() == (version,):
        return
    await cursor.execute(f"{statements}\ncomment on function {quoted}._find_log is '{version}';".encode())


_FIND_VERSION = """
select obj_description(to_regprocedure('$schema._find_log(text, integer)'), 'pg_proc')
where to_regclass('$schema.topics') is not null and to_regclass('$schema.group_offsets') is not null
  and to_regprocedure('$schema.records(text, integer, bigint, bigint)') is not null
"""


def _varint_reader(name: str) -> str:
    """Returns the PL/pgSQL statements that read a zig-zag varint at `position` into a variable.

    They are inserted where they are needed, because a call of a function would cost more than all of them. The shift
    to the right keeps the sign, so the mask clears it.
    """
    return f"""
        byte := get_byte(bytes, position); position := position + 1;
        if byte < 128 then
            {name} := (byte >> 1) # -(byte & 1);
        else
            number := byte & 127; shift := 7;
            loop
                byte := get_byte(bytes, position); position := position + 1;
                number := number | ((byte & 127)::bigint << shift); shift := shift + 7;
                exit when byte < 128;
            end loop;
            {name} := ((number >> 1) & 9223372036854775807) # -(number & 1);
        end if;"""


_VARINT_READERS = {
    f"read_{name}": _varint_reader(name)
    for name in ("record_size", "timestamp_delta", "offset_delta", "size", "header_count")
}

_VIEWS = """
create or replace function $schema._text(value bytea) returns text
language plpgsql immutable strict as $$$$
begin
    return convert_from(value, 'UTF8');
exception when character_not_in_repertoire or untranslatable_character then
    return null;
end $$$$;
comment on function $schema._text is 'The bytes as text, or null if they are not valid UTF-8.';

create or replace function $schema._time(milliseconds bigint) returns timestamptz
language sql immutable as $$$$
    select case when milliseconds between 0 and 253402300799999
        then timestamptz '1970-01-01 00:00:00+00' + milliseconds * interval '1 millisecond' end
$$$$;
comment on function $schema._time is 'A timestamp of Kafka. Null if it is negative (-1: missing) or after 9999.';

-- Not strict, because Postgres would not inline it then.
create or replace function $schema._integer(bytes bytea, "position" integer, size integer) returns bigint
language sql immutable as $$$$
    select case size
        when 2 then (get_byte(bytes, "position") << 24 >> 16) | get_byte(bytes, "position" + 1)
        when 4 then ('x' || encode(substring(bytes from "position" + 1 for 4), 'hex'))::bit(32)::integer
        when 8 then ('x' || encode(substring(bytes from "position" + 1 for 8), 'hex'))::bit(64)::bigint
    end
$$$$;
comment on function $schema._integer is 'A signed big-endian integer of 2, 4 or 8 bytes.';

create or replace function $schema._decode_batch(base_offset bigint, batch bytea)
returns table (
    "offset" bigint, timestamp_ms bigint, key bytea, value bytea, headers jsonb,
    attributes integer, producer_id bigint, note text
)
language plpgsql immutable strict rows 100 as $$$$
#variable_conflict use_variable
declare
    -- A copy, because each access to a value in TOAST would fetch it again.
    bytes bytea := substring(batch from 1);
    batch_size integer := length(bytes);
    "position" integer := 61;
    record_end integer;
    byte integer;
    number bigint;
    shift integer;
    base_timestamp bigint;
    append_time bigint;
    record_count integer;
    record_size bigint;
    timestamp_delta bigint;
    offset_delta bigint;
    size bigint;
    header_count bigint;
    header_key bytea;
    header_value bytea;
    header_text text;
begin
    "offset" := base_offset;
    attributes := get_byte(bytes, 22);
    producer_id := nullif($schema._integer(bytes, 43, 8), -1);
    record_count := $schema._integer(bytes, 57, 4);
    if get_byte(bytes, 16) <> 2 then
        note := format('a batch of format version %s: read it with moldau consume', get_byte(bytes, 16));
        return next;
        return;
    end if;
    if attributes & 7 <> 0 and record_count > 0 then
        timestamp_ms := $schema._integer(bytes, 35, 8);
        note := format(
            '%s records, compressed with %s: read them with moldau consume', record_count,
            coalesce((array['gzip', 'snappy', 'lz4', 'zstd'])[attributes & 7], 'codec ' || (attributes & 7))
        );
        return next;
        return;
    end if;
    base_timestamp := $schema._integer(bytes, 27, 8);
    if attributes & 8 <> 0 then
        append_time := $schema._integer(bytes, 35, 8);
    end if;
    for _ in 1..record_count loop
        $read_record_size
        record_end := "position" + record_size;
        if record_size < 6 or record_end > batch_size then
            raise data_exception using message = format('a record has a size of %s bytes', record_size);
        end if;
        "position" := "position" + 1;
        $read_timestamp_delta
        $read_offset_delta
        $read_size
        if size < 0 then
            key := null;
        else
            key := substring(bytes from "position" + 1 for size::integer);
            "position" := "position" + size;
        end if;
        $read_size
        if size < 0 then
            value := null;
        else
            value := substring(bytes from "position" + 1 for size::integer);
            "position" := "position" + size;
        end if;
        $read_header_count
        headers := '[]';
        while header_count > 0 loop
            $read_size
            header_key := substring(bytes from "position" + 1 for size::integer);
            "position" := "position" + size;
            $read_size
            if size < 0 then
                header_value := null;
            else
                header_value := substring(bytes from "position" + 1 for size::integer);
                "position" := "position" + size;
            end if;
            header_text := $schema._text(header_value);
            headers := headers || (jsonb_build_object(
                'key', coalesce($schema._text(header_key), encode(header_key, 'escape')), 'value', header_text
            ) || case when header_value is not null and header_text is null
                -- Without the line breaks that encode() adds.
                then jsonb_build_object('base64', translate(encode(header_value, 'base64'), chr(10), ''))
                else '{}' end);
            header_count := header_count - 1;
        end loop;
        if "position" <> record_end then
            raise data_exception using message = format('a record of %s bytes ends at a wrong byte', record_size);
        end if;
        "offset" := base_offset + offset_delta;
        timestamp_ms := coalesce(append_time, base_timestamp + timestamp_delta);
        if attributes & 32 <> 0 then
            note := case $schema._integer(key, 2, 2)
                when 0 then 'abort marker' when 1 then 'commit marker'
                else 'control record of type ' || $schema._integer(key, 2, 2) end;
        end if;
        return next;
    end loop;
exception when data_exception then
    key := null; value := null; headers := null;
    note := format('the rest of this batch cannot be decoded: %s', sqlerrm);
    return next;
end $$$$;
comment on function $schema._decode_batch is 'The records of a batch, or a row with a note if it is not decoded.';

create or replace function $schema._find_log(topic text, "partition" integer) returns bigint
language plpgsql stable as $$$$
#variable_conflict use_variable
declare
    found_id bigint;
begin
    select l.id into found_id from $schema.log l
    where l.topic = topic and l.partition = "partition" and l.state = 'live';
    if found_id is null then
        raise exception 'this node has no partition % of the topic %', "partition", topic
            using errcode = 'no_data_found', hint = 'The view topics lists all topics.';
    end if;
    return found_id;
end $$$$;

create or replace view $schema.topics as
select
    l.topic,
    l.topic_id,
    count(*)::integer as partitions,
    sum(l.end_offset - l.start_offset)::bigint as records,
    coalesce(sum(batches.bytes), 0)::bigint as bytes,
    $schema._time(min(nullif(first_batch.base_timestamp, -1))) as oldest_timestamp,
    $schema._time(max(batches.max_timestamp)) as newest_timestamp
from $schema.log l
left join lateral (
    select sum(b.size) as bytes, max(b.max_timestamp) as max_timestamp from $schema.batch b
    where b.log_id = l.id and b.last_offset >= l.start_offset and b.base_offset < l.end_offset
) batches on true
left join lateral (
    select $schema._integer(substring(b.data from 28 for 8), 0, 8) as base_timestamp from $schema.batch b
    where b.log_id = l.id and b.last_offset >= l.start_offset and b.base_offset < l.end_offset
    order by b.base_offset limit 1
) first_batch on true
where l.state = 'live'
group by l.topic, l.topic_id;
comment on view $schema.topics is 'The topics of this node. Offsets that compaction removed count as records.';

create or replace function $schema.records(
    topic text, "partition" integer, "from" bigint default null, "to" bigint default null
)
returns table (
    "offset" bigint, "timestamp" timestamptz, key bytea, value bytea, key_text text, value_text text, headers jsonb,
    producer_id bigint, is_transactional boolean, is_aborted boolean, is_control boolean, note text
)
language sql stable rows 1000 as $$$$
    select
        r."offset", $schema._time(r.timestamp_ms), r.key, r.value, $schema._text(r.key), $schema._text(r.value),
        r.headers, r.producer_id, r.attributes & 16 <> 0,
        r.attributes & 48 = 16 and exists (
            select from $schema.aborted_transaction a
            where a.log_id = l.id and a.producer_id = r.producer_id
              and a.last_offset >= r."offset" and a.first_offset <= r."offset"
        ),
        r.attributes & 32 <> 0, r.note
    from $schema.log l
    cross join lateral (
        select greatest(records."from", l.start_offset) as first_offset
    ) first
    cross join lateral (
        select least(coalesce(records."to", first.first_offset + $records_max), l.end_offset) as end_offset
    ) last
    join lateral (
        select b.base_offset, b.last_offset, b.data from $schema.batch b
        where b.log_id = l.id and b.base_offset < last.end_offset and b.last_offset >= first.first_offset
          and b.base_offset >= coalesce((
              select max(e.base_offset) from $schema.batch e
              where e.log_id = l.id and e.base_offset <= first.first_offset
          ), first.first_offset)
    ) b on true
    cross join lateral $schema._decode_batch(b.base_offset, b.data) r
    where l.id = $schema._find_log(records.topic, records."partition")
      and r."offset" < last.end_offset
      and (r."offset" >= first.first_offset or (r.note is not null and r.attributes & 32 = 0))
    order by r."offset"
$$$$;
comment on function $schema.records is
    'The records of a partition with offsets from "from" to before "to", by default $records_max. One row with a '
    'note for each batch that is compressed.';

create or replace function $schema._offset_key(
    key bytea, out "group" text, out topic text, out "partition" integer
)
language plpgsql immutable strict as $$$$
declare
    group_size integer := $schema._integer(key, 2, 2);
    topic_size integer := $schema._integer(key, 4 + group_size, 2);
    group_bytes bytea := substring(key from 5 for group_size);
    topic_bytes bytea := substring(key from 7 + group_size for topic_size);
begin
    -- Clients choose these names, and may use characters that Postgres cannot store.
    "group" := coalesce($schema._text(group_bytes), encode(group_bytes, 'escape'));
    topic := coalesce($schema._text(topic_bytes), encode(topic_bytes, 'escape'));
    "partition" := $schema._integer(key, 6 + group_size + topic_size, 4);
end $$$$;

create or replace function $schema._offset_value(
    value bytea, out "offset" bigint, out leader_epoch integer, out metadata text, out commit_time timestamptz
)
language plpgsql immutable strict as $$$$
declare
    version integer := $schema._integer(value, 0, 2);
    "position" integer := 10;
    size integer;
    byte integer;
    shift integer := 0;
begin
    if version not between 0 and 4 then
        raise data_exception using message = format('a committed offset has the unknown format version %s', version);
    end if;
    "offset" := $schema._integer(value, 2, 8);
    if version >= 3 then
        leader_epoch := nullif($schema._integer(value, "position", 4), -1);
        "position" := "position" + 4;
    end if;
    if version < 4 then
        size := $schema._integer(value, "position", 2);
        "position" := "position" + 2;
    else
        -- An unsigned varint: the length plus one.
        size := -1;
        loop
            byte := get_byte(value, "position");
            size := size + ((byte & 127) << shift);
            "position" := "position" + 1;
            shift := shift + 7;
            exit when byte < 128;
        end loop;
    end if;
    metadata := $schema._text(substring(value from "position" + 1 for size));
    commit_time := $schema._time($schema._integer(value, "position" + size, 8));
end $$$$;

create or replace function $schema._refuse(topic text, "partition" integer, "offset" bigint, note text)
returns boolean
language plpgsql stable as $$$$
begin
    raise exception 'the batch at offset % of %-% has committed offsets that SQL cannot read: %',
        "offset", topic, "partition", note
        using errcode = 'feature_not_supported', hint = 'moldau group describe shows the offsets of a group.';
end $$$$;

create or replace view $schema.group_offsets as
with decoded as (
    select b.log_id, r.*
    from $schema.log l
    join $schema.batch b on b.log_id = l.id and b.last_offset >= l.start_offset and b.base_offset < l.end_offset
    cross join lateral $schema._decode_batch(b.base_offset, b.data) r
    where l.topic = '__consumer_offsets' and l.state = 'live'
      and (r.note is null or r.attributes & 32 <> 0 or $schema._refuse(l.topic, l.partition, r."offset", r.note))
      and r."offset" >= l.start_offset and r."offset" < l.end_offset
),
ended as (
    -- The next marker of the record's producer: twice its offset, plus one if it commits.
    select *, min(
        case when attributes & 32 <> 0 and note in ('abort marker', 'commit marker')
            then "offset" * 2 + (note = 'commit marker')::integer end
    ) over (partition by log_id, producer_id order by "offset" desc) as marker
    from decoded
),
latest as (
    select distinct on (log_id, substring(key from 3)) key, value
    from ended
    -- Keys of offsets have version 0 or 1, with the same fields. Other versions are keys of groups.
    where attributes & 32 = 0 and substring(key from 1 for 2) in ('\\x0000', '\\x0001')
      and (attributes & 16 = 0 or marker & 1 = 1)
    order by log_id, substring(key from 3), "offset" desc
)
select k."group", k.topic, k."partition", v."offset", v.leader_epoch, v.metadata, v.commit_time
from latest
cross join lateral $schema._offset_key(latest.key) k
cross join lateral $schema._offset_value(latest.value) v
where latest.value is not null;
comment on view $schema.group_offsets is
    'The committed offsets of consumer groups, decoded from __consumer_offsets. Offsets of open and aborted '
    'transactions are not committed.';
"""
