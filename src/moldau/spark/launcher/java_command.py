"""Command lines of Spark's Java processes.

Spark's own scripts are not used, because they cannot use the class cache. They also always request the module
`jdk.incubator.vector`, which a Java from PyPI lacks.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from moldau.spark.launcher.java import Java
from moldau.spark.launcher.spark_home import SparkHome

OPENED_PACKAGES = """
    java.base/java.lang java.base/java.lang.invoke java.base/java.lang.reflect java.base/java.io java.base/java.net
    java.base/java.nio java.base/java.util java.base/java.util.concurrent java.base/java.util.concurrent.atomic
    java.base/jdk.internal.ref java.base/sun.nio.ch java.base/sun.nio.cs java.base/sun.util.calendar
    java.security.jgss/sun.security.krb5
    """
"""Packages that Spark accesses by reflection."""
OPENED_PACKAGE_BEFORE_24 = "java.base/sun.security.action"
"""A package that Spark accesses by reflection and that Java 24 removed."""

PROCESS_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "",
    "spark.driver.defaultJavaOptions": "",
    "spark.driver.extraClassPath": "",
    "spark.driver.extraLibraryPath": "",
}
"""Settings that take effect only when the Java process starts, with Spark's defaults."""

SUBMIT_SETTING_PREFIXES = ("spark.jars", "spark.files", "spark.archives", "spark.yarn.", "spark.kubernetes.")
"""Prefixes of the settings that `SparkSubmit` itself acts on, for example to download packages."""

PYTHON_FILES = "spark.submit.pyFiles"


def module_options(release: int) -> list[str]:
    """Returns the Java options that Spark needs with this Java release."""
    opened = [*OPENED_PACKAGES.split(), *([OPENED_PACKAGE_BEFORE_24] if release < 24 else [])]
    return [
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in opened),
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
        # Java before 23 does not know this option, and ignores it because of IgnoreUnrecognizedVMOptions.
        "--sun-misc-unsafe-memory-access=allow",
        "--enable-native-access=ALL-UNNAMED",
    ]


def java_command(
    java: Java,
    spark: SparkHome,
    main_class: str,
    arguments: Sequence[str],
    *,
    options: Sequence[str],
    memory: str,
    class_path: str = "",
) -> list[str]:
    """Returns the command of a Spark class in `org.apache.spark.deploy`. `class_path` is searched before Spark's."""
    # Put the settings directory last, because a class cache works only if the class path starts as in the training.
    whole_path = ":".join(filter(None, [class_path, spark.class_path(), f"{spark.settings}/"]))
    command = [str(java.program), "-cp", whole_path, f"-Xmx{memory}", *module_options(java.release), *options]
    return [*command, f"org.apache.spark.deploy.{main_class}", *arguments]


def gateway_command(
    java: Java, spark: SparkHome, settings: Mapping[str, str], properties: Path, *, options: Sequence[str] = ()
) -> list[str]:
    """Returns the command of a driver's gateway.

    The command line contains only PROCESS_SETTINGS. Other settings are in the file `properties`, because a command line
    is visible to other users and settings may contain passwords.
    """
    of_process = {name: settings.get(name, value) for name, value in PROCESS_SETTINGS.items()}
    process_options = [*options]
    for name in ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"):
        process_options += shlex.split(of_process[name])
    if of_process["spark.driver.extraLibraryPath"]:
        process_options.append(f"-Djava.library.path={of_process['spark.driver.extraLibraryPath']}")
    return java_command(
        java,
        spark,
        "SparkSubmit",
        ["--properties-file", str(properties), "pyspark-shell"],
        options=process_options,
        memory=of_process["spark.driver.memory"],
        class_path=of_process["spark.driver.extraClassPath"],
    )


def submit_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings that `SparkSubmit` needs when the Java process starts."""
    return {name: value for name, value in settings.items() if name == "spark.master" or _is_submit_setting(name)}


def session_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings for a session: all except the Python files and what `SparkSubmit` has already applied."""
    return {name: value for name, value in settings.items() if not _is_submit_setting(name) and name != PYTHON_FILES}


def _is_submit_setting(name: str) -> bool:
    return name in PROCESS_SETTINGS or name.startswith(SUBMIT_SETTING_PREFIXES)


def python_files(settings: Mapping[str, str]) -> list[str]:
    return [each.strip() for each in settings.get(PYTHON_FILES, "").split(",") if each.strip()]


def properties_text(settings: Mapping[str, str]) -> str:
    """Formats a Java properties file."""
    return "".join(f"{_escape(name)}={_escape(value)}\n" for name, value in settings.items())


def _escape(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/"
    return "".join(chr(code) if chr(code) in plain else f"\\u{code:04x}" for code in codes)
