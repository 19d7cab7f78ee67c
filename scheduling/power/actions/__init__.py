"""All writes of power, each guarded and with its Event."""
