"""Incident notices: the message texts and their delivery by e-mail, webhook or Slack."""
