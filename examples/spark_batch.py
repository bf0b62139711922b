"""Counts the words of a topic with Spark and writes the counts to another topic.

Start a broker and send some lines first: moldau serve; echo "to be or not to be" | moldau produce lines
Run: pip install 'moldau[spark]'; python examples/spark_batch.py [bootstrap servers]
"""

import sys

import moldau.spark

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"

spark = moldau.spark.session()
lines = spark.read.format("moldau").option("kafka.bootstrap.servers", BOOTSTRAP).option("subscribe", "lines").load()
counts = (
    lines.selectExpr("explode(split(CAST(value AS STRING), ' ')) AS word")
    .groupBy("word")
    .count()
    .selectExpr("word AS key", "CAST(count AS STRING) AS value")
)
(
    counts.write.format("moldau")
    .option("kafka.bootstrap.servers", BOOTSTRAP)
    .option("topic", "word-counts")
    .mode("append")
    .save()
)
counts.orderBy("key").show()
spark.stop()
