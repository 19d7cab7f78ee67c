"""Queue orders that need what only a replay knows: true run times, the service of all ended jobs, or leases."""
