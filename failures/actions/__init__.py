"""The only code that writes failure records, with `recovery`: each action is one transaction."""
