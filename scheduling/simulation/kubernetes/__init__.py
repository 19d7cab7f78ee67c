"""A simulated cluster that serves the Kubernetes API."""
