"""The world `connectors`: a source that reads what a Debezium connector has written; the connector is a model."""
