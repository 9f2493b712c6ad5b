"""Errors for a person: what is wrong, and what to do about it.

SwitchyardError   exit 1: it failed
  BadUsage        exit 2: the request makes no sense
  Refused         exit 3: the request is clear, but was not carried out, to prevent a loss
  Unavailable     exit 1: Kafka or the bucket of the store can't be reached, or refuses for now; a retry may help
    LoginRefused  exit 1: Kafka refuses the login, or one side refuses the other's certificate
"""

from __future__ import annotations

from typing import Any, ClassVar

from pipelines.secrets import masked


class SwitchyardError(Exception):
    """`what` is wrong, and what to do (`fix`). The command line prints both, without a traceback."""

    exit_code: ClassVar[int] = 1
    # could the same call succeed later?
    retryable: ClassVar[bool] = False

    def __init__(self, what: str, fix: str = "") -> None:
        # it may quote what was passed to a client or a JVM
        self.what = masked(what)
        self.fix = masked(fix)
        super().__init__(self.what, self.fix)

    def __str__(self) -> str:
        return f"{self.what}\n{self.fix}" if self.fix else self.what

    @property
    def in_one_line(self) -> str:
        """As a part of a longer message."""
        return f"{self.what}; {self.fix}" if self.fix else self.what

    def as_json(self) -> dict[str, Any]:
        """As a command prints it with `--json`."""
        return {"error": self.what, "fix": self.fix, "exit_code": self.exit_code, "retryable": self.retryable}

    @property
    def told(self) -> str:
        """As a command prints it."""
        return f"error: {self.what}" + (f"\n  {self.fix}" if self.fix else "")


class BadUsage(SwitchyardError):
    """An unknown name or option, or options that contradict each other."""

    exit_code = 2


class Refused(SwitchyardError):
    """The request is clear, but would do harm, or its conditions are not met."""

    exit_code = 3


class Cancelled(SwitchyardError):
    """Ctrl-C or SIGTERM has ended the command."""

    # as shells do it
    exit_code = 130
    retryable = True

    def __init__(
        self, what: str = "canceled", fix: str = "`switchyard operations` lists what is left to resume"
    ) -> None:
        super().__init__(what, fix)


class Unavailable(SwitchyardError):
    """The broker or the bucket of the store is not there, can't be reached, or can't do it for now."""

    retryable = True


class LoginRefused(Unavailable):
    """User, password or certificate are refused. A retry helps once someone has corrected that."""
