"""Change streams for readers: what each chose, one reader of Kafka for all that have caught up, and its encoding."""
