"""Models that the worlds share: the topic, an owner of a partition, and the true history of commits."""
