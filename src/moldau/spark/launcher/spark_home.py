"""Discovery of Spark. SPARK_HOME comes first, then the installed PySpark."""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moldau.spark.errors import NO_PYSPARK, LaunchError


@dataclass(frozen=True)
class SparkHome:
    home: Path
    settings: Path
    """The directory of `spark-defaults.conf`, which need not exist."""

    @property
    def jars(self) -> Path:
        return self.home / "jars"

    def class_path(self) -> str:
        # Put the jar of slf4j first, because other jars contain old copies of its classes.
        first = sorted(self.jars.glob("slf4j-api-*.jar"))
        return ":".join([*map(str, first), f"{self.jars}/*"])


def find_spark(environ: Mapping[str, str] | None = None) -> SparkHome:
    """Finds Spark without importing PySpark, which the processes of a standalone cluster do not need."""
    environ = os.environ if environ is None else environ
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LaunchError(NO_PYSPARK)
    home = Path(environ.get("SPARK_HOME") or Path(spec.origin).parent)
    if not (home / "jars").is_dir():
        raise LaunchError(
            f"{home} is not a Spark installation: it has no directory jars. Unset SPARK_HOME to use the one in PySpark."
            if environ.get("SPARK_HOME")
            else f"PySpark in {home} does not include Spark (pyspark-client?): pip install 'moldau[spark]'"
        )
    return SparkHome(home, Path(environ.get("SPARK_CONF_DIR") or home / "conf"))
