"""Prints all topics as JSON."""

from brokers import ArgumentParser, Brokers, RequestFailedError, format_error, format_response, run

OK = 200


def main() -> int:
    arguments = ArgumentParser("List all topics.").parse_args()
    try:
        response = Brokers(arguments.brokers).request("GET", "/admin/v1/topics")
    except RequestFailedError as error:
        print(format_error(error))
        return 1
    print(format_response(response))
    return 0 if response.status_code == OK else 1


if __name__ == "__main__":
    run(main)
