"""Tests of what Acme does to the attempts that it runs on Kubernetes."""
