"""Container of the management commands; no other code belongs here."""
