"""Read-only queries about power, also for snapshots."""
