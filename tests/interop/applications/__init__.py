"""Applications that use Kafka, run unchanged on clusters that lose a node."""
