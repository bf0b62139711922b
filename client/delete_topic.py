"""Deletes a topic. Prints nothing, or the error as JSON."""

from urllib.parse import quote

from brokers import ArgumentParser, Brokers, RequestFailedError, format_error, format_response, run

NO_CONTENT = 204


def main() -> int:
    parser = ArgumentParser("Delete a topic.")
    parser.add_argument("topic_name", help="name of the topic")
    arguments = parser.parse_args()
    path = f"/admin/v1/topics/{quote(arguments.topic_name, safe='')}"
    try:
        response = Brokers(arguments.brokers).request("DELETE", path, is_repeatable=False)
    except RequestFailedError as error:
        print(format_error(error))
        return 1
    if response.status_code == NO_CONTENT:
        return 0
    print(format_response(response))
    return 1


if __name__ == "__main__":
    run(main)
