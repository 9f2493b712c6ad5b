"""Switchyard beside Flink, Kafka Streams and plain Spark: the same queries on the same topics, on the same machine."""
