"""Models that the worlds share: the topic, a process that owns a partition, and the commits that truly were."""
