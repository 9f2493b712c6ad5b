"""The errors that a person is told: what is wrong, and what to do about it.

SwitchyardError   exit 1: it failed
  BadUsage        exit 2: asked in a way that means nothing
  Refused         exit 3: understood, and not done, to prevent a loss
  Unavailable     exit 1: Kafka is not there, not reachable, or refuses for now; a retry may help
    LoginRefused  exit 1: it refuses the login, or one of both sides the other's certificate
"""

from __future__ import annotations

from typing import ClassVar

from pipelines.secrets import masked


class SwitchyardError(Exception):
    """`what` is wrong and, in `fix`, what to do about it. The command line prints both, without a traceback."""

    exit_code: ClassVar[int] = 1
    # would the same call, later, have a chance?
    retryable: ClassVar[bool] = False

    def __init__(self, what: str, fix: str = "") -> None:
        # it may quote what a client or a JVM was given
        self.what = masked(what)
        self.fix = masked(fix)
        super().__init__(self.what, self.fix)

    def __str__(self) -> str:
        return f"{self.what}\n{self.fix}" if self.fix else self.what

    @property
    def told(self) -> str:
        """As a command prints it."""
        return f"error: {self.what}" + (f"\n  {self.fix}" if self.fix else "")


class BadUsage(SwitchyardError):
    """An unknown name or option, or options that do not go together."""

    exit_code = 2


class Refused(SwitchyardError):
    """The request is clear and would do harm, or its conditions are not met."""

    exit_code = 3


class Unavailable(SwitchyardError):
    """The broker is not there, not reachable, or can't do it for now."""

    retryable = True


class LoginRefused(Unavailable):
    """User, password or certificate are refused. A retry helps once someone has put that right."""
