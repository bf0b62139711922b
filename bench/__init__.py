"""Side-by-side benchmarks of Moldau and Apache Kafka: `python -m bench.run` writes RESULTS.md."""
