"""Running jobs as real processes on this machine: users, attempt records, and the shim next to each job."""
