"""The HTML pages of failures, incidents, learned rules and notification channels."""
