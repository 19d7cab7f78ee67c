"""Programs that Acme sends to nodes: node tests, all-gather tests and evaluation jobs. Standard library only."""
