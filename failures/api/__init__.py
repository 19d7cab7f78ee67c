"""The REST API of failures, incidents, learned rules and notification channels."""
