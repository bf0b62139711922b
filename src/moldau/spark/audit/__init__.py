"""The replica audit: compares all replicas of topics on Spark, and names the first difference of each replica."""
