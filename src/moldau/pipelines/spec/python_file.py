"""Pipelines in Python: decorated functions from DataFrames to DataFrames.

    from moldau.pipelines import Pipeline

    pipeline = Pipeline("revenue", bootstrap="127.0.0.1:9092", dead_letters="orders.dead")

    @pipeline.source(topic="orders", schema="product STRING, quantity INT, price DOUBLE")
    def orders(records):
        return records.where("quantity > 0")

    @pipeline.view
    def revenue(orders):
        return orders.selectExpr("product", "quantity * price AS revenue")

    @pipeline.sink(topic="revenue", key="product")
    def out(revenue):
        return revenue

The parameter names of a function are the names of the views that the function receives. The function of a source
receives the decoded records. Settings have the same names and rules as in YAML.
"""

import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from moldau.pipelines.definition import PipelineDefinition, PipelineError, Sink, Source, TransformFunction, View
from moldau.pipelines.spec.parser import parse_pipeline_settings, parse_sink, parse_source
from moldau.pipelines.spec.section import FileLocations, SpecSection

F = TypeVar("F", bound=Callable[..., Any])

_NO_SESSION_ERROR = "SESSION_OR_CONTEXT_NOT_EXISTS"


class Pipeline:
    """The declarations of a pipeline file. `definition()` returns the pipeline."""

    def __init__(self, name: str, **settings: Any) -> None:
        """`settings` are those of the whole pipeline in YAML, such as bootstrap, kafka, dead_letters and spark."""
        self._file, line = _caller()
        self._settings = {"name": name, **settings}
        self._lines: dict[tuple[str, ...], int] = {(): line}
        self._folder = None if self._file is None else self._file.parent
        self.locations = FileLocations("" if self._file is None else str(self._file), self._lines)
        self._sources: dict[str, Source] = {}
        self._views: dict[str, View] = {}
        self._sinks: dict[str, Sink] = {}

    def source(self, name: str | None = None, /, **settings: Any) -> Callable[[F], F]:
        """Declares a view over topics.

        As a decorator, the source passes the decoded records to the function, and the function's name is the default
        name. Without a function, the source needs a name.
        """
        _, line = _caller()

        def declare(name: str, transform: TransformFunction | None) -> None:
            source = parse_source(name, self._section(("sources", name), settings, line), self._folder)
            self._sources[name] = replace(source, transform=transform)

        return _decorator(name, declare)

    def view(self, function: F) -> F:
        """Declares a step of the transformation."""
        self._add_view(View(function.__name__, transform=function), _caller()[1])
        return function

    def sql(self, name: str, select: str) -> None:
        """Declares a step of the transformation as SQL over sources and earlier views."""
        self._add_view(View(name, sql=select), _caller()[1])

    def sink(self, name: str | None = None, /, **settings: Any) -> Callable[[F], F]:
        """Declares a sink.

        As a decorator, the sink writes the function's result. Without a function, the sink needs a name and writes the
        view `view=`, or the last view.
        """
        _, line = _caller()
        renamed = {("from" if key in ("view", "from_") else key): value for key, value in settings.items()}

        def declare(name: str, transform: TransformFunction | None) -> None:
            view = f"_rows_of_{name}".replace("-", "_")
            if transform is not None:
                self._add_view(View(view, transform=transform), line)
            sink = parse_sink(name, self._section(("sinks", name), renamed, line), self._folder)
            self._sinks[name] = sink if transform is None else replace(sink, view=view)

        return _decorator(name, declare)

    def definition(self) -> PipelineDefinition:
        settings = SpecSection(self._settings, (), self.locations)
        views = tuple(self._views.values())
        visible = tuple(view for view in views if not view.name.startswith("_rows_of_"))
        sources, sinks = tuple(self._sources.values()), tuple(self._sinks.values())
        return replace(parse_pipeline_settings(settings, sources, visible, sinks, self._file), views=views)

    def _section(self, path: tuple[str, ...], settings: dict[str, Any], line: int) -> SpecSection:
        self._lines[path] = line
        return SpecSection(settings, path, self.locations)

    def _add_view(self, view: View, line: int) -> None:
        path = ("transform", view.name)
        if view.name in self._views:
            raise self.locations.error(path, f"two views are named {view.name!r}")
        self._lines[path] = line
        self._views[view.name] = view


def _decorator(name: str | None, declare: Callable[[str, TransformFunction | None], None]) -> Callable[[F], F]:
    """Declares a source or sink if it has a name. Returns a decorator that declares it with a function."""
    if name is not None:
        declare(name, None)

    def decorate(function: F) -> F:
        declare(name or function.__name__, function)
        return function

    return decorate


def _caller() -> tuple[Path | None, int]:
    """Returns the file and line of the caller's caller."""
    frame = sys._getframe(2)
    name = frame.f_code.co_filename
    return (None if name.startswith("<") else Path(name)), frame.f_lineno


def load_python_file(path: Path, text: str) -> Pipeline:
    """Runs a Python file and returns the only pipeline in it. Raises PipelineError."""
    from pyspark import cloudpickle

    module = ModuleType(f"moldau_pipeline_{path.stem}")
    module.__file__ = str(path.absolute())
    sys.modules[module.__name__] = module
    # Let the file import modules from its own directory, as a script can.
    sys.path.insert(0, str(path.parent.absolute()))
    try:
        exec(compile(text, str(path.absolute()), "exec"), module.__dict__)
    except PipelineError:
        raise
    except SyntaxError as error:
        raise PipelineError(f"{path}:{error.lineno}: not valid Python: {error.msg}") from None
    except SystemExit as error:
        raise PipelineError(
            f"{path}:{_line_of(error, path)}: the file called sys.exit({error.code!r}); a pipeline file only declares"
        ) from error
    except Exception as error:
        where = f"{path}:{_line_of(error, path)}"
        if _NO_SESSION_ERROR in str(error):
            raise PipelineError(
                f"{where}: this needs a Spark session, which is not started when the file is loaded: give types as "
                'objects (@F.udf(T.IntegerType()), not @F.udf("int")), and use the session inside the functions '
                "of sources, views and sinks"
            ) from error
        raise PipelineError(f"{where}: the file raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent.absolute()))
    # Pickle the functions of the file by value, because executors do not have the file.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    found = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    if len({id(each) for each in found.values()}) != 1:
        count_text = f"has {len(found)} ({', '.join(found)})" if found else "has none"
        raise PipelineError(
            f"{path}: a file must define one pipeline (pipeline = Pipeline({path.stem!r})); this {count_text}"
        )
    return next(iter(found.values()))


def _line_of(error: BaseException, path: Path) -> int:
    """Returns the line of this file that is innermost in the traceback, or 0."""
    name = str(path.absolute())
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == name]
    return lines[-1] if lines else 0
