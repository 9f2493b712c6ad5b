"""What the errors of a bucket's client mean, and what a person can do about them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipelines.bucket import Bucket
from pipelines.errors import Refused, SwitchyardError, Unavailable

# what Arrow says of an answer: the kind of the error, and the HTTP status of one that it doesn't know
_ANSWER = re.compile(r"AWS Error ([A-Z_0-9]+)(?: \(HTTP status (\d+)\))?")
_NO_BUCKET = "NO_SUCH_BUCKET"
# a retry doesn't help
_FORBIDDEN = frozenset({
    "ACCESS_DENIED", "EXPIRED_TOKEN", "INCOMPLETE_SIGNATURE", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID",
    "INVALID_SIGNATURE", "MISSING_AUTHENTICATION_TOKEN", "OPT_IN_REQUIRED", "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT",
    "VALIDATION",
})  # fmt: skip
# the bucket is in another region, or the request is signed for another one
_ELSEWHERE = frozenset({"301", "307", "400"})
_KEYS = "access_key and secret_key of the setting store (SWITCHYARD_STORE), or AWS's own variables or profile"


def where_of(options: Mapping[str, str]) -> str:
    """Whom the client with these options asks."""
    region = options.get("region")
    return options.get("endpoint_override") or ("AWS" if region is None else f"AWS, region {region}")


def no_bucket(bucket: Bucket, where: str) -> Refused:
    """The error of a bucket that isn't there."""
    return Refused(
        f"there is no bucket {bucket.name} at {where}",
        fix="set store_url (SWITCHYARD_STORE_URL) to a bucket that exists, or create it; see endpoint_override and region of "
        "the setting store",
    )


def failure(bucket: Bucket, where: str, error: Exception) -> SwitchyardError:
    """What to say of an error of the client. Unavailable if a retry may help."""
    if not isinstance(error, OSError):
        return Refused(
            f"the client of {bucket.url} does not take the setting store: {_line(error)}",
            fix="correct the setting store (SWITCHYARD_STORE)",
        )
    if error.errno is not None:
        # of a file of this host; the client's errors have no number
        return SwitchyardError(
            f"a file can't be read or written: {error}",
            fix="free some disk space, or fix the permissions of its folder",
        )
    kind, status = _kind(error)
    if kind == _NO_BUCKET:
        return no_bucket(bucket, where)
    if kind in _FORBIDDEN:
        return Refused(
            f"{where} refuses access to {bucket.url}: {_line(error)}",
            fix=f"check {_KEYS}, and the rights that docs/security.md lists",
        )
    if status in _ELSEWHERE:
        return Refused(
            f"{where} does not take requests for {bucket.url}: {_line(error)}",
            fix=f"set region of the setting store to the bucket's own; if it is, check {_KEYS}",
        )
    return Unavailable(
        f"the store {bucket.url} can't be reached at {where}: {_line(error)}",
        fix="check the network, and endpoint_override and scheme of the setting store; then repeat the command",
    )


def _kind(error: OSError) -> tuple[str, str]:
    """The kind and the HTTP status of an error, each empty if Arrow doesn't say it. It has no attribute for them."""
    found = _ANSWER.search(str(error))
    return (found[1], found[2] or "") if found is not None else ("", "")


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
