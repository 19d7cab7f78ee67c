"""Kubernetes: reads nodes, pods and their owners through the API server. Acme only observes such clusters."""
