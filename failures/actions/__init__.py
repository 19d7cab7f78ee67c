"""The only code that writes failure records: each action is one transaction. Also loads the inputs of decisions."""
