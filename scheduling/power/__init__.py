"""Power: nodes that sleep while nobody needs them, and the energy of what runs. Pure."""
