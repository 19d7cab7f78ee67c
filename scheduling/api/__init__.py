"""Endpoints of the REST API for scheduling."""
