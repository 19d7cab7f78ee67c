"""All writes of replays, each guarded and with its Event."""
