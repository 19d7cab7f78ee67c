"""`acme diagnose`: the server's diagnosis engine on a local log. It sends nothing, so it works without a server.

`acme_client/diagnosis` is the server's directory `failures/diagnosis`: a link in the repository, a copy in the wheel.
"""

from __future__ import annotations

import typer


def diagnose_files(files: list[str], exit_code: int | None, signal: str | None, as_json: bool) -> int:
    """Print each diagnosis as soon as it is known; return how many files could not be read."""
    from acme_client.diagnosis import commandline  # compiling the patterns takes a second, so only this command does it
    from acme_client.diagnosis.values import ExitStatus

    ending = ExitStatus(exit_code=exit_code, signal=commandline.signal_number(signal) if signal else None)
    unread = 0
    for text, read in commandline.diagnose_files(files, ending, as_json):
        typer.echo(text)
        unread += not read
    return unread
