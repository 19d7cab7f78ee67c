"""The GPU-hour ledger: every GPU-second of a cluster in one bucket, and the reports based on it.

api | pages
loops
actions            the only code that changes rows
reads
rules              pure
"""
