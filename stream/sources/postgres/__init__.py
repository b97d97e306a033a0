"""The source of a PostgreSQL database: what Debezium's connector writes of it, and what the server itself is asked."""
