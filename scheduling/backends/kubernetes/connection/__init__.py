"""Connecting to an API server: addresses, kubeconfig files, permissions, and what to check if it fails."""
