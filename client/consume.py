"""Prints the records of a topic-partition, and new ones when they arrive, until Ctrl+C."""

import sys
import time
from typing import Any, NoReturn

from brokers import ArgumentParser, Brokers, RequestFailedError, describe_refusal, positive_integer, run

OK = 200
POLL_INTERVAL_S = 0.2


def main() -> int:
    parser = ArgumentParser("Consume the records of a topic-partition until Ctrl+C.")
    parser.add_argument("topic_partition", help="name of the topic, a dash, and the number of the partition from 1 on")
    parser.add_argument(
        "-s",
        dest="batch_size",
        type=positive_integer,
        default=100,
        help="maximum number of records per request (100 by default)",
    )
    arguments = parser.parse_args()
    try:
        consume(Brokers(arguments.brokers), arguments.topic_partition, arguments.batch_size)
    except RequestFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def consume(brokers: Brokers, topic_partition: str, batch_size: int) -> NoReturn:
    """Polls and prints records for ever. Raises RequestFailedError."""
    last_offset = -1
    while True:
        body = {"topic_partition": topic_partition, "last_offset": last_offset, "max_batch_size": batch_size}
        response = brokers.request("POST", "/data/v1/consume", body)
        if response.status_code != OK:
            raise RequestFailedError(describe_refusal(response))
        polled = response.json()
        for record in polled["records"]:
            print(f"[{record['offset']}] [{_text(record.get('key'))}] {_text(record.get('payload'))}")
        sys.stdout.flush()
        last_offset = max(last_offset, int(polled["last_offset"]), *(each["offset"] for each in polled["records"]))
        if not polled["records"]:
            time.sleep(POLL_INTERVAL_S)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


if __name__ == "__main__":
    run(main)
