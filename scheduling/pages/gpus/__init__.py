"""GPU models on the settings page of a cluster."""
