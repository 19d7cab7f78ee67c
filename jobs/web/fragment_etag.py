"""The ETag of a fragment: two responses with the same tag look the same to the user. Pure."""

from __future__ import annotations

import hashlib
import re

# What differs in each response and changes nothing: the encoding of the CSRF token, and the texts of times, which
# live.js continues by itself
_CSRF_TOKEN = re.compile(rb'(name="csrfmiddlewaretoken" value=")[^"]*')
_TICKING_TEXT = re.compile(rb"(<time(?: [^>]*)? data-(?:ago|expected|since|started|until)=[^>]*>)[^<]*")


def fragment_etag(content: bytes) -> str:
    """Return a weak ETag, because responses with the same tag may differ in bytes that nobody sees."""
    visible = _TICKING_TEXT.sub(rb"\1", _CSRF_TOKEN.sub(rb"\1", content))
    return f'W/"{hashlib.sha256(visible).hexdigest()[:24]}"'
