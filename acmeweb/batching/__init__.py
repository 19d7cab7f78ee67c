"""ASGI middleware that answers frequent requests in batches, without Django."""
