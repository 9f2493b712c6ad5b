"""How Ivy reaches the jars: through the proxy that the environment names, as pip and uv read it, and from a mirror."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import Request, urlopen
from xml.sax.saxutils import quoteattr

from pipelines.errors import BadUsage

log = logging.getLogger(__name__)

MIRROR = "SWITCHYARD_MAVEN_URL"
# hosts that Java leaves out by default, unless it is given a list
_THIS_MACHINE = ("localhost", "127.*", "[::1]")
_PROBE_S = 30.0
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """A user and a password. They are never part of a command, because other users can list the commands of processes."""

    user: str
    password: str


def java_properties(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Java's properties for the proxies in HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, in either case; {} without
    a proxy. They may hold the login of the proxy. Raises BadUsage for a proxy that Java can't use.
    """
    env = os.environ if environment is None else environment
    properties: dict[str, str] = {}
    for scheme in ("http", "https"):
        found = _variable(env, f"{scheme}_proxy") or _variable(env, "all_proxy")
        if not found:
            continue
        proxy = urlsplit(found if "//" in found else f"http://{found}")
        if proxy.scheme != "http" or not proxy.hostname:
            raise BadUsage(
                f"the jars can't be fetched through the proxy in {scheme.upper()}_PROXY: it is {proxy.scheme}://{proxy.hostname or ''}",
                fix="name an HTTP proxy, as http://host:port; it passes https on as well",
            )
        properties |= {f"{scheme}.proxyHost": proxy.hostname, f"{scheme}.proxyPort": str(proxy.port or _PORTS["http"])}
        if (login := _login(proxy)) is not None:
            # Ivy has one login for both
            properties |= {"http.proxyUser": login.user, "http.proxyPassword": login.password}
            # Java refuses the only way in which most proxies ask for a password before they pass https on
            properties["jdk.http.auth.tunneling.disabledSchemes"] = ""
    if properties:
        properties["http.nonProxyHosts"] = "|".join([*_direct(_variable(env, "no_proxy")), *_THIS_MACHINE])
    return properties


def arguments_file(properties: Mapping[str, str]) -> str:
    """The text of a file of arguments for Java."""

    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"')

    return "".join(f'"-D{name}={quoted(value)}"\n' for name, value in properties.items())


def ivy_settings(path: str = "", environment: Mapping[str, str] | None = None) -> str | None:
    """Ivy's settings for the mirror in SWITCHYARD_MAVEN_URL, with the login that is in it; None without a mirror. Raises
    BadUsage if that is no address. `path`: of a file there; with a login, it is asked for, to learn the realm.
    """
    env = os.environ if environment is None else environment
    url = urlsplit(env.get(MIRROR, "").strip())
    if not url.geturl():
        return None
    if url.scheme not in _PORTS or not url.hostname:
        raise BadUsage(
            f"{MIRROR} is not the address of a Maven repository", fix="write it like https://mirror.example.com/maven2"
        )
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    root = f"{url.scheme}://{host}{f':{url.port}' if url.port else ''}{url.path.rstrip('/')}/"
    login = _login(url)
    credentials = (
        ""
        if login is None
        else f"<credentials host={quoteattr(url.hostname)} realm={quoteattr(_realm(root + path))} username={quoteattr(login.user)} passwd={quoteattr(login.password)}/>"
    )
    return (
        f'<ivysettings><settings defaultResolver="mirror"/>{credentials}<resolvers>'
        f'<ibiblio name="mirror" m2compatible="true" root={quoteattr(root)}/></resolvers></ivysettings>\n'
    )


def _variable(environment: Mapping[str, str], name: str) -> str:
    """As curl and pip read it: the lower case first."""
    return (environment.get(name) or environment.get(name.upper()) or "").strip()


def _login(url: SplitResult) -> Login | None:
    return None if url.username is None else Login(user=unquote(url.username), password=unquote(url.password or ""))


def _realm(address: str) -> str:
    """The realm that a server names when it asks for a login: Ivy sends none to another. "" if it asks for none."""
    try:
        with urlopen(Request(address, method="HEAD"), timeout=_PROBE_S):
            return ""
    except HTTPError as error:
        found = re.search(r'\brealm="([^"]*)"', error.headers.get("WWW-Authenticate") or "", re.IGNORECASE)
        return found[1] if found else ""
    except OSError as error:
        # Ivy says it better, if it gets no further
        log.info("%s does not say its realm: %s", urlsplit(address).hostname, error)
        return ""


def _direct(no_proxy: str) -> list[str]:
    """Java's patterns for NO_PROXY: a name also matches the hosts below it. Ranges of addresses mean nothing here."""
    names = [name.strip().partition(":")[0].removeprefix("*").removeprefix(".") for name in no_proxy.split(",")]
    if "*" in (name.strip() for name in no_proxy.split(",")):
        return ["*"]
    return [pattern for name in names if name and "/" not in name for pattern in (name, f"*.{name}")]
