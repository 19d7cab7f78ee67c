"""Endpoints of the REST API for replays and previews of a policy."""
