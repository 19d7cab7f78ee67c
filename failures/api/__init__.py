"""The REST API of failures, incidents, recovery decisions, learned rules and notification channels."""
