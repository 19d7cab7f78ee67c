"""Tests of the REST API of jobs, nodes, clusters, logs and progress."""
