"""Connections to clusters: backends, circuit breaker, connection test."""
