"""Schema inference for JSON sources without a schema. The schema is stored for all queries and later runs."""

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from moldau.pipelines.definition import Format, PipelineDefinition, PipelineError, Source
from moldau.pipelines.planner.hadoop_files import HadoopFiles
from moldau.pipelines.planner.topic_streams import read_sample
from moldau.pipelines.records.decoder import value_schema

SAMPLE_RECORDS = 1_000


def source_schema(
    spark: SparkSession, pipeline: PipelineDefinition, source: Source, directory: str | None, *, keep: bool = True
) -> T.StructType:
    """Returns the columns of a source's values. Reads inferred schemas from `directory`; stores new ones if `keep`."""
    if source.format is not Format.JSON or source.schema is not None:
        return value_schema(source)
    path = None if directory is None else f"{directory}/{source.name}.schema.json"
    storage = HadoopFiles(spark)
    text = None if path is None else storage.read(path)
    if text is not None:
        return value_schema(source, T.StructType.fromJson(json.loads(text)))
    inferred = infer_schema(spark, read_sample(spark, pipeline, source, SAMPLE_RECORDS, values_only=True), source)
    if path is not None and keep:
        storage.write(path, inferred.json() + "\n")
    return value_schema(source, inferred)


def infer_schema(spark: SparkSession, values: DataFrame, source: Source) -> T.StructType:
    """Returns the schema of a sample. Raises PipelineError if the sample has no usable record."""
    texts = [row[0] for row in values.where("value IS NOT NULL").select(F.col("value").cast("string")).collect()]
    if not texts:
        raise _no_schema_error(source, "there are no records yet to infer one from")
    # Skip records that are not JSON, because a run will treat them as bad records.
    found = spark.read.option("mode", "DROPMALFORMED").json(spark.sparkContext.parallelize(texts, 1)).schema
    if not found.fields:
        raise _no_schema_error(source, f"none of the first {len(texts)} records is a JSON object with fields")
    schema = _without_null_types(found)
    assert isinstance(schema, T.StructType)
    return schema


def _no_schema_error(source: Source, why: str) -> PipelineError:
    topics = source.pattern or ", ".join(source.topics)
    return PipelineError(f"the source {source.name} ({topics}) has no schema, and {why}: set schema: name TYPE, …")


def _without_null_types(kind: T.DataType) -> T.DataType:
    """Replaces the type of fields that are always null with string."""
    if isinstance(kind, T.NullType):
        return T.StringType()
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(each.name, _without_null_types(each.dataType)) for each in kind.fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_without_null_types(kind.elementType))
    return kind
