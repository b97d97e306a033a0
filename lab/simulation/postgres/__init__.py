"""The world `postgres`: a PostgreSQL, Debezium's connector of it, the source that reads that, and its readers."""
