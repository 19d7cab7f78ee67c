"""Framework of the REST API, used by all apps: endpoints, permissions, errors, pagination, idempotency, schema."""
