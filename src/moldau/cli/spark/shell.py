"""`moldau spark shell`: opens a Python shell with a Spark session."""

import code
import importlib.util
import sys
from typing import Annotated, Any

import typer

from moldau.cli.spark.parameters import MasterUrl, PythonFiles, Settings, exit_on_error, parse_spark_conf

EXAMPLE = (
    'spark.read.format("moldau").option("kafka.bootstrap.servers", "127.0.0.1:9092")'
    '.option("subscribe", "orders").load().show()'
)


def spark_shell(
    master: MasterUrl = None,
    settings: Settings = None,
    name: Annotated[str, typer.Option(help="Application name.")] = "moldau shell",
    py_files: PythonFiles = None,
) -> None:
    """Open a Python shell with a Spark session `spark` that can read and write topics.

    moldau spark shell

    moldau spark shell --master spark://127.0.0.1:7077 --conf spark.executor.memory=2g
    """
    conf = parse_spark_conf(settings, py_files)
    with exit_on_error():
        from moldau.spark.launcher.session import session

        spark = session(name, master=master, settings=conf)
        names = {"spark": spark, "sc": spark.sparkContext}
        try:
            _interact(names, banner(spark.version, str(spark.sparkContext.master)))
        finally:
            spark.stop()


def banner(version: str, master: str) -> str:
    python = ".".join(map(str, sys.version_info[:2]))
    return f"Spark {version} on {master}, Python {python}. `spark` is the session. Try:\n\n    {EXAMPLE}\n"


def _interact(names: dict[str, Any], text: str) -> None:
    if importlib.util.find_spec("IPython") is not None and sys.stdin.isatty():
        from IPython.terminal.embed import InteractiveShellEmbed  # type: ignore[import-not-found, unused-ignore]

        InteractiveShellEmbed(banner1=text, user_ns=names)()
        return
    if importlib.util.find_spec("readline") is not None:
        import readline
        import rlcompleter

        readline.set_completer(rlcompleter.Completer(names).complete)
        readline.parse_and_bind("tab: complete")
    code.interact(banner=text, local=names, exitmsg="")
