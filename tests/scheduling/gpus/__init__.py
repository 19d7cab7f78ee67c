"""GPU models on live clusters: speeds and quotas."""
