"""The loops of the installation: their table, the processes that run them, and what is known of their health."""
