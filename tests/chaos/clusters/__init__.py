"""The clusters of a storm: one interface, and an implementation for each kind of cluster."""
