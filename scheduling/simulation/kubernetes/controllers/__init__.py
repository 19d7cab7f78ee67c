"""The controllers of a simulated Kubernetes cluster. Pure."""
