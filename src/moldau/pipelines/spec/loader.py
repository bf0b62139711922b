"""Loader of pipeline files: YAML with SQL, or Python with decorated functions. YAML has these options:

    name: revenue                    # default: the file name
    bootstrap: ${MOLDAU_BOOTSTRAP:-127.0.0.1:9092}
    sources:
      orders:                        # the source's name in SQL
        topic: orders                # or topics: [a, b], or pattern: "orders-.*"
        format: json                 # bytes | string | json | avro
        schema: product STRING, quantity INT, price DOUBLE, at TIMESTAMP   # default: inferred; Avro: schema_file
        key: string                  # bytes | string: type of _key
        starting: earliest           # earliest | latest | 2024-05-01T00:00:00Z
        watermark: {column: at, delay: 10 seconds}
        expectations: {positive_price: price > 0}
        options: {}                  # more options of the data source; avro.wire: confluent
    transform:                       # one SELECT, or several by name; a SELECT may use earlier ones
      revenue: |
        SELECT window.start AS minute, product, SUM(quantity * price) AS revenue
        FROM orders GROUP BY window(at, '1 minute'), product
    sinks:
      out: {topic: revenue, key: product, format: json, mode: update}
      table: {delta: tables/revenue, mode: upsert, key: [minute, product]}   # order_by: …, delete_when: _deleted
      database: {postgres: public.revenue, url: "postgresql://app:${PASSWORD}@db/shop"}   # mode, key, … as for delta
      archive: {parquet: archive/orders, from: orders, partition_by: product}
      screen: {console: true}
    on_bad: dead_letter              # fail (default) | drop | dead_letter
    dead_letters: orders.dead        # the topic; implies on_bad: dead_letter
    trigger: 1 second                # default: as soon as the previous batch ends
    rate_limit: 100000               # records per batch and query
    checkpoint: checkpoints          # default: in the state directory
    kafka: {security.protocol: SASL_SSL, sasl.password: "${PASSWORD}"}
    spark: {spark.sql.shuffle.partitions: 2}

Relative paths are relative to the pipeline file. Sinks drop the metadata columns (`_key`, `_offset`…) unless they are
renamed. The options key, order_by, delete_when and partition_by may use metadata columns.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from moldau.pipelines.definition import PipelineDefinition, PipelineError
from moldau.pipelines.spec.parser import parse_pipeline, parse_pipeline_settings
from moldau.pipelines.spec.python_file import load_python_file
from moldau.pipelines.spec.section import FileLocations, SpecSection
from moldau.pipelines.spec.validation import find_problems
from moldau.pipelines.spec.yaml_file import parse_yaml


def load(path: Path, *, overrides: Mapping[str, str] = {}) -> PipelineDefinition:
    """Loads a pipeline file. Raises PipelineError with the file and line.

    `overrides` replace settings of the whole pipeline, such as `bootstrap`, `rate_limit` or `kafka.<option>`.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"cannot read the pipeline {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PipelineError(f"the pipeline {path} is not text in UTF-8") from None
    if path.suffix in (".yaml", ".yml"):
        tree, locations = parse_yaml(path, text, os.environ)
        pipeline = parse_pipeline(SpecSection(tree, (), locations), path.absolute())
    elif path.suffix == ".py":
        python_pipeline = load_python_file(path, text)
        pipeline, locations = python_pipeline.definition(), python_pipeline.locations
    else:
        raise PipelineError(f"{path}: a pipeline is a .yaml or a .py file")
    pipeline = _apply_overrides(pipeline, overrides)
    for where, message in find_problems(pipeline):
        raise locations.error(where, message)
    return pipeline


def check_definition(pipeline: PipelineDefinition) -> PipelineDefinition:
    """Validates a definition that was not loaded from a file. Raises PipelineError."""
    for where, message in find_problems(pipeline):
        raise PipelineError(f"{'.'.join(where)}: {message}")
    return pipeline


def _apply_overrides(pipeline: PipelineDefinition, overrides: Mapping[str, str]) -> PipelineDefinition:
    if not overrides:
        return pipeline
    tree: dict[str, object] = {
        name: getattr(pipeline, name)
        for name in ("name", "bootstrap", "on_bad", "trigger", "rate_limit", "checkpoint", "publish_progress")
    }
    tree["dead_letters"] = pipeline.dead_letter_topic
    tree |= {name: value for name, value in overrides.items() if not name.startswith(("kafka.", "spark."))}
    for kind in ("kafka", "spark"):
        # Keep the prefix: the parser removes `kafka.` itself, and `spark.` is a part of the names of Spark's settings.
        own = {name: value for name, value in overrides.items() if name.startswith(f"{kind}.")}
        tree[kind] = {**getattr(pipeline, kind), **own}
    if "dead_letters" in overrides and "on_bad" not in overrides:
        del tree["on_bad"]
    section = SpecSection(tree, (), FileLocations("the command line", {}))
    changed = parse_pipeline_settings(section, pipeline.sources, pipeline.views, pipeline.sinks, None)
    return replace(changed, file=pipeline.file)
