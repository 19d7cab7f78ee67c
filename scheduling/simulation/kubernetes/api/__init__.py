"""The rules of the Kubernetes API: resources, objects, requests and answers. Pure."""
