"""Rules of the ledger. Pure."""
