"""Creates a topic and prints it as JSON."""

from brokers import ArgumentParser, Brokers, RequestFailedError, format_error, format_response, positive_integer, run

CREATED = 201


def main() -> int:
    parser = ArgumentParser("Create a topic.")
    parser.add_argument("topic_name", help="name of the topic")
    parser.add_argument(
        "-p", dest="partitions", type=positive_integer, default=3, help="number of partitions (3 by default)"
    )
    parser.add_argument(
        "-r",
        dest="replicas",
        type=positive_integer,
        default=3,
        help="number of replicas (3 by default); the brokers accept it, and all of them have a replica",
    )
    arguments = parser.parse_args()
    body = {
        "topic_name": arguments.topic_name,
        "partition_count": arguments.partitions,
        "replication_factor": arguments.replicas,
    }
    try:
        response = Brokers(arguments.brokers).request("POST", "/admin/v1/topics", body, is_repeatable=False)
    except RequestFailedError as error:
        print(format_error(error))
        return 1
    print(format_response(response))
    return 0 if response.status_code == CREATED else 1


if __name__ == "__main__":
    run(main)
