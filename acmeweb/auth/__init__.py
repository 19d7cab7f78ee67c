"""Authentication: passwords, OpenID Connect, bearer tokens, and the client's address."""
