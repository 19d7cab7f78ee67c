"""Set-up, start and supervision of the programs of an instance."""
