"""`acme diagnose`: the server's own engine on a log that lies here. It asks nobody, so it works without a server.

`acme_client/diagnosis` is the server's directory `failures/diagnosis`: a link in the repository, a copy in the wheel.
"""

from __future__ import annotations

import typer


def diagnose_files(files: list[str], exit_code: int | None, signal: str | None, as_json: bool) -> int:
    """Print each answer as soon as it is known; how many files could not be read."""
    from acme_client.diagnosis import commandline  # its patterns take a second to compile: only who asks pays
    from acme_client.diagnosis.values import ExitStatus

    ending = ExitStatus(exit_code=exit_code, signal=commandline.signal_number(signal) if signal else None)
    unread = 0
    for text, read in commandline.diagnose_files(files, ending, as_json):
        typer.echo(text)
        unread += not read
    return unread
