"""Endpoints of the REST API for power."""
