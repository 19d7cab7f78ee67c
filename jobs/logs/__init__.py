"""Reading job logs from shared storage: path checks, reader processes, windows, search and streams."""
