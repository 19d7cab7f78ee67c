"""Several GPU models: speeds, the choice between models, quotas for one, and least attained service."""
