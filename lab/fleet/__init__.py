"""A fleet of instances on the pure code of the location cache: what knowing where a million partitions are costs."""
