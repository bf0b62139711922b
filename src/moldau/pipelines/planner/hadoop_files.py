"""Small files beside Spark's checkpoints, on any file system that Spark supports."""

from typing import Any

from pyspark.sql import SparkSession


class HadoopFiles:
    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._configuration = spark._jsc.hadoopConfiguration()

    def exists(self, path: str) -> bool:
        found, system = self._resolve(path)
        return bool(system.exists(found))

    def read(self, path: str) -> str | None:
        found, system = self._resolve(path)
        if not system.exists(found):
            return None
        stream = system.open(found)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Writes a temporary file and renames it, so that no reader sees a partial file."""
        found, system = self._resolve(path)
        unfinished, _ = self._resolve(f"{path}.unfinished")
        system.mkdirs(found.getParent())
        stream = system.create(unfinished, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        if system.exists(found):
            system.delete(found, False)
        system.rename(unfinished, found)

    def _resolve(self, path: str) -> tuple[Any, Any]:
        found = self._jvm.org.apache.hadoop.fs.Path(path)
        return found, found.getFileSystem(self._configuration)
