"""A simulated Kafka cluster, and look-alikes of confluent_kafka's clients that talk to it."""
