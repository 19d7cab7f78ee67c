"""Comparisons of replays and of queues, with charts and sentences for readers. Pure."""
