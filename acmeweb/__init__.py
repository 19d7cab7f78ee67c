"""The Django project: settings, URLs, ASGI, and what belongs to no single app."""
