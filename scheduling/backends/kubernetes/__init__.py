"""Kubernetes: reads nodes, pods and their owners through the API server, and runs attempts as pods."""
