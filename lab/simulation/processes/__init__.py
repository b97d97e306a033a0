"""The world of processes: folds of one topic that crash, pause, restart, are rebuilt, or start from a checkpoint."""
