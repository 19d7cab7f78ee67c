"""The HTML pages of failures, incidents, recovery decisions, learned rules and notification channels."""
