"""The cluster that Acme starts itself: its registration, and the demo workload."""
