"""Power in replays: the power of a schedule with and without a budget, and studies of nodes that sleep. Pure."""
