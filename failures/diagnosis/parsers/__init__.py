"""Parsers of what single log lines contain: traceback frames, GPU events and collective operations. Pure."""
