"""Actions of scheduling: all writes to its models, each guarded and with its Event."""
