"""The SQL statements of the log store. Their parameters have names; `log` is always the id of a log."""

# Batches. The batch that contains an offset is the last one that starts at or before it.

_FROM_OFFSET = """
    log_id = %(log)s and last_offset >= %(offset)s and base_offset >= coalesce((
        select max(base_offset) from batch where log_id = %(log)s and base_offset <= %(offset)s
    ), 0)
"""

READ = f"""
select data from (
    select data, size, sum(size) over (order by base_offset) - size as size_before from (
        select base_offset, data, size from batch
        where {_FROM_OFFSET} and base_offset < %(below)s and last_offset < %(below)s
        order by base_offset limit %(rows)s
    ) as page
) as sized
where size_before + size <= %(bytes)s or (size_before = 0 and %(at_least_one)s)
"""
"""The batches that end at or after `offset` and before `below`. Their data is loaded only if they fit into `bytes`."""

SIZES = f"""
select last_offset, size from batch
where {_FROM_OFFSET} and base_offset < %(below)s and last_offset < %(below)s
order by base_offset limit %(rows)s
"""

HEADERS = f"""
select case when get_byte(substr(data, 23, 1), 0) & 32 <> 0 then data else substr(data, 1, 61) end from batch
where {_FROM_OFFSET} and base_offset < %(below)s and last_offset < %(below)s
order by base_offset limit %(rows)s
"""
"""The headers of batches. Control batches are returned whole, because producer states need their record."""

SIZE_AND_END = """
select coalesce(sum(size) filter (where last_offset >= %(start)s), 0)::bigint, coalesce(max(last_offset) + 1, 0),
    coalesce(bool_or(last_offset < %(start)s), false)
from batch where log_id = %(log)s
"""
"""The size of the batches of the log, the end of the last one, and whether there are rows before the start offset."""

END_BELOW = """
select coalesce((
    select last_offset + 1 from batch where log_id = %(log)s and base_offset < %(offset)s and last_offset < %(offset)s
    order by base_offset desc limit 1
), 0)
"""

FIRST_SINCE_TIMESTAMP = f"""
select data from batch
where {_FROM_OFFSET} and base_offset < %(below)s and last_offset < %(below)s and max_timestamp >= %(timestamp)s
order by base_offset limit 1
"""

_BY_TIMESTAMP = """
select data, max_timestamp from batch
where log_id = %(log)s and last_offset >= %(offset)s and base_offset < %(below)s and last_offset < %(below)s
"""
MAX_TIMESTAMP = _BY_TIMESTAMP + "order by max_timestamp desc, base_offset limit 1"
NEXT_MAX_TIMESTAMP = (
    _BY_TIMESTAMP
    + """
    and (max_timestamp < %(timestamp)s or (max_timestamp = %(timestamp)s and base_offset > %(base_offset)s))
    order by max_timestamp desc, base_offset limit 1
"""
)

EXPIRED_END = f"""
select coalesce(max(last_offset) + 1, 0) from batch
where log_id = %(log)s and last_offset < %(below)s and base_offset < coalesce((
    select base_offset from batch
    where {_FROM_OFFSET} and base_offset < %(below)s and (max_timestamp >= %(timestamp)s or max_timestamp < 0)
    order by base_offset limit 1
), %(below)s)
"""
"""The end of the batches before the first one that has not expired. Batches without timestamps never expire."""

# Commits

COPY_BATCHES = """
copy batch (log_id, base_offset, last_offset, max_timestamp, leader_epoch, size, data) from stdin (format binary)
"""

SET_COMMITTED_ENDS = """
update log set end_offset = new.end_offset, leader_epochs = coalesce(new.leader_epochs, log.leader_epochs)
from unnest(%(logs)s::bigint[], %(previous_ends)s::bigint[], %(ends)s::bigint[], %(epochs)s::text[])
    as new (id, previous_end, end_offset, leader_epochs)
where log.id = new.id and log.end_offset = new.previous_end and log.state = 'live'
returning log.id
"""

COMMIT_AT_ONCE = """
with owner as (
    update node set commit_number = %(number)s::bigint
    where incarnation = %(incarnation)s and commit_number = %(number)s::bigint - 1
    returning 1
), ends as (
    update log set end_offset = new.end_offset, leader_epochs = coalesce(new.leader_epochs, log.leader_epochs)
    from unnest(%(logs)s::bigint[], %(previous_ends)s::bigint[], %(ends)s::bigint[], %(epochs)s::text[])
        as new (id, previous_end, end_offset, leader_epochs)
    where log.id = new.id and log.end_offset = new.previous_end and log.state = 'live' and exists (select from owner)
    returning 1
), added as (
    insert into batch (log_id, base_offset, last_offset, max_timestamp, leader_epoch, size, data)
    select log_id, base_offset, last_offset, max_timestamp, leader_epoch, length(data), data from unnest(
        %(log_ids)s::bigint[], %(base_offsets)s::bigint[], %(last_offsets)s::bigint[], %(max_timestamps)s::bigint[],
        %(leader_epochs)s::integer[], %(data)b::bytea[]
    ) as new (log_id, base_offset, last_offset, max_timestamp, leader_epoch, data)
)
select 1 / (exists (select from owner) and (select count(*) from ends) = cardinality(%(logs)s::bigint[]))::integer
"""
"""A whole transaction in one statement. It divides by zero, and so has no effect, if another process owns the
schema or a log does not end where it should."""

ADD_ABORTED = """
insert into aborted_transaction (log_id, last_offset, producer_id, first_offset, last_stable_offset)
select * from unnest(
    %(logs)s::bigint[], %(last_offsets)s::bigint[], %(producers)s::bigint[], %(first_offsets)s::bigint[],
    %(last_stable_offsets)s::bigint[]
)
"""

# Snapshots of producers, and aborted transactions

SNAPSHOTS = """
select end_offset, data from producer_snapshot where log_id = %(log)s and end_offset <= %(offset)s
order by end_offset desc
"""
PUT_SNAPSHOT = """
insert into producer_snapshot (log_id, end_offset, data) values (%(log)s, %(offset)s, %(data)s)
on conflict (log_id, end_offset) do update set data = excluded.data
"""
DELETE_OLD_SNAPSHOTS = """
delete from producer_snapshot
where log_id = %(log)s and end_offset > (select start_offset from log where id = %(log)s) and end_offset < (
    select min(end_offset) from (
        select end_offset from producer_snapshot where log_id = %(log)s order by end_offset desc limit %(retained)s
    ) as newest
)
"""
"""The snapshot at the start of the log stays, because the batches before it are deleted."""
DELETE_SNAPSHOTS_BEFORE = "delete from producer_snapshot where log_id = %(log)s and end_offset < %(offset)s"
DELETE_SNAPSHOTS_AFTER = "delete from producer_snapshot where log_id = %(log)s and end_offset > %(offset)s"

ABORTED = """
select producer_id, first_offset, last_offset, last_stable_offset from aborted_transaction
where log_id = %(log)s order by last_offset
"""
DELETE_ABORTED_BEFORE = "delete from aborted_transaction where log_id = %(log)s and last_offset < %(offset)s"
DELETE_ABORTED_FROM = "delete from aborted_transaction where log_id = %(log)s and last_offset >= %(offset)s"
DELETE_ABORTED = (
    "delete from aborted_transaction where log_id = %(log)s and last_offset = any(%(last_offsets)s::bigint[])"
)

# Truncation, retention and compaction

DELETE_BATCHES_FROM = f"delete from batch where {_FROM_OFFSET}"
DELETE_BATCHES_BEFORE = """
with page as materialized (
    select base_offset, size from batch
    where log_id = %(log)s and base_offset < %(offset)s and last_offset < %(offset)s
    order by base_offset limit %(rows)s
), deleted as (
    delete from batch where log_id = %(log)s and base_offset = any (array(
        select base_offset from (
            select base_offset, sum(size) over (order by base_offset) - size as size_before from page
        ) as sized
        where size_before < %(bytes)s
    ))
    returning 1
)
select count(*), (select count(*) from page) from deleted
"""
"""Deletes batches that end before `offset`. Returns how many, and how many there were up to `rows`."""
SET_OFFSETS = """
update log set start_offset = %(start)s, end_offset = %(end)s, leader_epochs = %(epochs)s,
    cleaned_offset = least(cleaned_offset, %(end)s), high_watermark = least(high_watermark, %(end)s)
where id = %(log)s
"""
DELETE_LOG = "update log set state = 'deleted' where id = %(log)s"
CREATE_LOG_AT = """
insert into log (topic, partition, topic_id, start_offset, end_offset, cleaned_offset, high_watermark)
select topic, partition, topic_id, %(offset)s, %(offset)s, %(offset)s, %(offset)s from log where id = %(log)s
returning id
"""
"""Creates the log that replaces another one, with a new id."""
SET_START = "update log set start_offset = %(offset)s, leader_epochs = %(epochs)s where id = %(log)s"

FIRST_AFTER_TIMESTAMP = f"""
select base_offset from batch
where {_FROM_OFFSET} and base_offset < %(below)s and last_offset < %(below)s and max_timestamp > %(timestamp)s
order by base_offset limit 1
"""
DIRTY = f"""
select coalesce(sum(size), 0)::bigint, coalesce(max(last_offset), -1),
    coalesce((array_agg(max_timestamp order by base_offset))[1], -1)
from batch where {_FROM_OFFSET} and base_offset < %(below)s and last_offset < %(below)s
"""
"""The size of the batches from `offset` on, their last offset, and the timestamp of the first of them."""
SIZE_BETWEEN = f"""
select coalesce(sum(size), 0)::bigint from batch
where {_FROM_OFFSET} and base_offset < %(below)s and last_offset < %(below)s
"""
"""The size of the batches that end at or after `offset` and before `below`."""
REMOVE_BATCHES = "delete from batch where log_id = %(log)s and base_offset = any(%(base_offsets)s::bigint[])"
REPLACE_BATCHES = """
update batch set data = new.data, size = length(new.data), max_timestamp = new.max_timestamp
from unnest(%(base_offsets)s::bigint[], %(max_timestamps)s::bigint[], %(data)b::bytea[])
    as new (base_offset, max_timestamp, data)
where log_id = %(log)s and batch.base_offset = new.base_offset
"""
SET_CLEANED = "update log set cleaned_offset = %(offset)s where id = %(log)s"

# Logs

_COLUMNS = "id, topic, partition, topic_id, start_offset, end_offset, cleaned_offset, high_watermark, leader_epochs"
LIVE_LOGS = "select topic, partition, topic_id from log where state = 'live' order by id"
DELETED_LOGS = "select id from log where state = 'deleted'"
FIND_LOG = f"select {_COLUMNS} from log where topic = %(topic)s and partition = %(partition)s and state = 'live'"
CREATE_LOG = """
insert into log (topic, partition, topic_id) values (%(topic)s, %(partition)s, %(topic_id)s)
"""
SET_STATE = """
update log set state = %(state)s where topic = %(topic)s and partition = %(partition)s and state = 'live' returning id
"""
FORGET_LOG = """
with snapshots as (delete from producer_snapshot where log_id = %(log)s),
    transactions as (delete from aborted_transaction where log_id = %(log)s)
delete from log where id = %(log)s
"""
SET_HIGH_WATERMARKS = """
update log set high_watermark = new.high_watermark
from unnest(%(logs)s::bigint[], %(high_watermarks)s::bigint[]) as new (id, high_watermark) where log.id = new.id
"""
SET_CLEAN_SHUTDOWN = "update node set had_clean_shutdown = true, broker_epoch = %(broker_epoch)s"
