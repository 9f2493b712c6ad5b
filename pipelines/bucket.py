"""What settings say about a store in a bucket: its URL, the options of the client, the login. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SCHEME = "s3"
# the client's own names for them (pyarrow.fs.S3FileSystem)
OPTIONS = (
    "access_key",
    "endpoint_override",
    "external_id",
    "region",
    "role_arn",
    "scheme",
    "secret_key",
    "session_name",
    "session_token",
    "tls_ca_file_path",
)
# a bucket, and names between slashes, none of which is a folder's `.` or `..`
_PLACE = re.compile(r"s3://([A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9])((?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._=-]+)*)/?")
_ENDPOINT = re.compile(r"[^\s/@:]+(:\d+)?|\[[0-9A-Fa-f:]+\](:\d+)?")
# how AWS's own tools find a login: variables, profiles, roles
_AWS = re.compile(r"AWS_\w+")
_LOGIN = {
    "AWS_ACCESS_KEY_ID": "access_key",
    "AWS_SECRET_ACCESS_KEY": "secret_key",
    "AWS_SESSION_TOKEN": "session_token",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """`prefix`: what the keys of all objects start with, without a slash at its end; empty: nothing."""

    name: str
    prefix: str

    @property
    def root(self) -> str:
        """Bucket and prefix, as the client wants them."""
        return f"{self.name}/{self.prefix}" if self.prefix else self.name

    @property
    def url(self) -> str:
        return f"{SCHEME}://{self.root}"


def bucket_of(url: str | None) -> Bucket | None:
    """The bucket that a `store_url` names; None: it names none."""
    found = _PLACE.fullmatch(url or "")
    return None if found is None else Bucket(name=found[1], prefix=found[2].removeprefix("/"))


def wrong_options(options: Mapping[str, str]) -> str | None:
    """What is wrong with the options of the client, without their values; None: nothing."""
    if unknown := sorted(options.keys() - set(OPTIONS)):
        # a name of another form may be a secret in the wrong place
        told = [
            name if re.fullmatch(r"[a-z_]{1,40}", name) else "a name of another form (not shown)" for name in unknown
        ]
        return f"store takes {', '.join(OPTIONS)}, not {', '.join(told)}"
    if ("access_key" in options) != ("secret_key" in options):
        return "store takes access_key and secret_key together, or neither"
    if "session_token" in options and "access_key" not in options:
        return "store takes a session_token only with access_key and secret_key"
    if "role_arn" in options and "access_key" in options:
        return (
            "store takes a role_arn or an access_key, not both: a role is assumed with the login of AWS's own variables"
        )
    if options.get("scheme", "https") not in ("https", "http"):
        return "scheme of store takes https or http"
    if not _ENDPOINT.fullmatch(options.get("endpoint_override", "host")):
        return "endpoint_override of store takes HOST:PORT; put http into scheme, and a login into access_key and secret_key"
    return None


def login_of(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The options with the keys that AWS's variables hold, if nothing else says how to log in."""
    if {"access_key", "role_arn"} & options.keys():
        return dict(options)
    keys = {option: environment[name] for name, option in _LOGIN.items() if environment.get(name)}
    return {**options, **keys} if {"access_key", "secret_key"} <= keys.keys() else dict(options)


def passed_to_driver(options: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """The variables of an environment that a driver needs beside these options to find its login.

    `options`: as `login_of` returns them. With keys in them, AWS's variables hold no other login, and their keys stay out.
    """
    found = [name for name in names if _AWS.fullmatch(name)]
    return [name for name in found if "access_key" not in options or name not in _LOGIN]
