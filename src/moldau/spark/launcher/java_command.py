"""The command line of a Java process of Spark, as Spark's own scripts would put it together.

Ours is put together here because theirs always asks for `jdk.incubator.vector`, which a Java from PyPI does not have,
and because only here the class cache can be named.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from moldau.spark.launcher.java import Java
from moldau.spark.launcher.spark_home import SparkHome

OPENED_PACKAGES = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
"""Packages that Spark reaches into."""
OPENED_PACKAGES_BEFORE_24 = ("java.base/sun.security.action",)
"""And one that later releases do not have any more."""

GATEWAY_CLASS = "org.apache.spark.deploy.SparkSubmit"
MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"

PROCESS_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "",
    "spark.driver.defaultJavaOptions": "",
    "spark.driver.extraClassPath": "",
    "spark.driver.extraLibraryPath": "",
}
"""Settings that are decided when the process starts, with Spark's defaults."""

SUBMIT_SETTING_PREFIXES = ("spark.jars", "spark.files", "spark.archives", "spark.yarn.", "spark.kubernetes.")
"""Settings (and families of them) that `SparkSubmit` acts upon itself: it fetches packages, and so on."""

PYTHON_FILES = "spark.submit.pyFiles"


def module_options(release: int) -> list[str]:
    """What Spark needs of any Java of this release."""
    opened = OPENED_PACKAGES if release >= 24 else OPENED_PACKAGES + OPENED_PACKAGES_BEFORE_24
    return [
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in opened),
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
        # Unknown before 23, and then ignored thanks to the first.
        "--sun-misc-unsafe-memory-access=allow",
        "--enable-native-access=ALL-UNNAMED",
    ]


def java_command(
    java: Java,
    spark: SparkHome,
    name: str,
    arguments: Sequence[str],
    *,
    options: Sequence[str] = (),
    memory: str,
) -> list[str]:
    """A process of Spark's that is not a driver."""
    command = [str(java.program), "-cp", _class_path(spark), f"-Xmx{memory}"]
    return [*command, *module_options(java.release), *options, name, *arguments]


def gateway_command(
    java: Java,
    spark: SparkHome,
    settings: Mapping[str, str],
    properties: Path,
    *,
    options: Sequence[str] = (),
) -> list[str]:
    """The process that a Python driver talks to; other settings than those of the process are in a file, where
    nobody else can read the passwords that may be among them."""
    of_process = {name: settings.get(name, value) for name, value in PROCESS_SETTINGS.items()}
    given = [*options]
    for name in ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"):
        given += shlex.split(of_process[name])
    if of_process["spark.driver.extraLibraryPath"]:
        given.append(f"-Djava.library.path={of_process['spark.driver.extraLibraryPath']}")
    return [
        str(java.program),
        "-cp",
        _class_path(spark, of_process["spark.driver.extraClassPath"]),
        f"-Xmx{of_process['spark.driver.memory']}",
        *module_options(java.release),
        *given,
        GATEWAY_CLASS,
        "--properties-file",
        str(properties),
        "pyspark-shell",
    ]


def submit_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that cannot wait for a session to bring them."""
    names = [name for name in settings if name == "spark.master" or _is_submit_setting(name)]
    return {name: settings[name] for name in names}


def session_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The others: what `SparkSubmit` made of those of the start, a session must not overwrite."""
    return {
        name: value
        for name, value in settings.items()
        if not _is_submit_setting(name) and name != PYTHON_FILES
    }


def _is_submit_setting(name: str) -> bool:
    return name in PROCESS_SETTINGS or name.startswith(SUBMIT_SETTING_PREFIXES)


def python_files(settings: Mapping[str, str]) -> list[str]:
    return [each.strip() for each in settings.get(PYTHON_FILES, "").split(",") if each.strip()]


def properties_text(settings: Mapping[str, str]) -> str:
    """As Java reads it: what is not plain is escaped."""
    return "".join(f"{_escape(name)}={_escape(value)}\n" for name, value in settings.items())


def _escape(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/"
    return "".join(chr(code) if chr(code) in plain else f"\\u{code:04x}" for code in codes)


def _class_path(spark: SparkHome, extra: str = "") -> str:
    # The settings go last: a class cache holds for a class path that begins as it did when it was made, and no jar
    # has files of the names that are in there.
    return ":".join(filter(None, [extra, spark.class_path(), f"{spark.settings}/"]))
