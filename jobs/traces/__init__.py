"""Job traces of other clusters and of Acme, read into one `Trace`. `files.read_trace` detects the layout."""
