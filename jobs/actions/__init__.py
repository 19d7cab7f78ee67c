"""The only code that changes rows of this app. Each action writes its Event in the same transaction."""
