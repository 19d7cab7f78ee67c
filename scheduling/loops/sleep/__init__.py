"""Loops that let nodes sleep and wake them up: decisions, what has become of them, and calls of the webhook."""
