"""The errors that several apps raise and distinguish. Pure.

EndsTurn            the remaining rows of a loop's turn would fail too
SkipsRow            an ordinary reason not to process one row now
└── StateConflict   the state of the rows does not permit it        HTTP 409
    └── ClaimLost   another worker or a user has the row now
NotAllowed          the user may not do it                          HTTP 403
InvalidField        a field of a request is invalid                 HTTP 400
InvalidInput        a text or a file cannot be used; who reads it for a field raises InvalidField
MalformedResponse   the answer of a server cannot be read
TimeLimitExceeded   the run of a loop took too long
"""

from __future__ import annotations

from collections.abc import Sequence


class EndsTurn(Exception):
    """The remaining rows of the turn would fail too: the lease is lost, or the cluster does not respond."""


class SkipsRow(Exception):
    """An ordinary reason not to process one row now: it waits for something, it was changed meanwhile, or the action
    does not fit its state. The message says why. The next turn retries the row."""


class StateConflict(SkipsRow):
    """The action does not fit the present state of the rows, or they were changed meanwhile. Nothing was changed. The
    message says why."""


class ClaimLost(StateConflict):
    """Another worker processes the row now, or a user has withdrawn it."""


class NotAllowed(Exception):
    """The user may see the rows but may not do this. The message says what is needed."""


class InvalidField(ValueError):
    """A field of a request is invalid. `field` is its name in the request, `why` a sentence without a subject.

    `others` are further invalid fields of the same request.
    """

    def __init__(self, field: str, why: str, others: Sequence[InvalidField] = ()) -> None:
        self.field, self.why, self.others = field, why, tuple(others)
        super().__init__(f"{field}: {why}")

    @property
    def by_field(self) -> dict[str, list[str]]:
        """The sentences of all invalid fields."""
        sentences: dict[str, list[str]] = {}
        for error in (self, *self.others):
            sentences.setdefault(error.field, []).append(error.why)
        return sentences


class InvalidInput(ValueError):
    """A text, a file or a setting cannot be used. The message says why. It has no subject if the caller names it."""


class MalformedResponse(ValueError):
    """The answer of a server, or one object of it, is not as its protocol defines it. The message names the field."""


class TimeLimitExceeded(BaseException):
    """The run of a loop took too long. The process ends afterwards, so that whatever the run left behind ends with it.

    It is no Exception, so that no handler of a row's errors takes it for one.
    """
