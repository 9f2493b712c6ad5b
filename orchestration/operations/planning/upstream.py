"""Which release of another app a new release reads: it is pinned at staging, and stays the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestration.operations.lifecycle import find_release, live_release
from orchestration.operations.plans.plan import join
from pipelines.errors import BadUsage, Refused
from pipelines.model.entries import InputSpec, ReleaseSpec, ResultSpec
from pipelines.model.names import result_of
from pipelines.model.registry import RegistryState, Release

_UNUSABLE = ("retired", "failed")
# of an Avro schema, see "Transforming into Parsing Canonical Form" in Avro's specification
_NOT_IN_BYTES = {"doc", "default", "aliases", "order"}


def pinned(
    state: RegistryState, app: str, upstream: Mapping[str, Mapping[str, Any]], asked: Sequence[str] = ()
) -> dict[str, InputSpec]:
    """Source -> the result that it reads, of the inputs of `app` that are results of other apps.

    `upstream`: as the definition says it, see `pipelines.engine.upstream`. `asked`: releases to read instead of the live
    ones. Raises BadUsage for an unknown app or result, one that can't be read as the definition says, and for a release
    of an app that is not read; Refused if there is no release to read.
    """
    chosen = {find_release(state, name).spec.app: find_release(state, name) for name in asked}
    apps = {of["app"] for of in upstream.values()}
    if other := [release.name for read, release in chosen.items() if read not in apps]:
        raise BadUsage(
            f"{app} does not read a result of {join(other)}",
            fix=f"it reads results of: {join(sorted(apps))}" if apps else "leave out --upstream",
        )
    found = {}
    for source, of in upstream.items():
        release = chosen.get(of["app"]) or _live(state, app, source, of["app"])
        if release.state in _UNUSABLE:
            raise Refused(
                f"{release.name} is {release.state}",
                fix=f"name another release of {of['app']} with --upstream; `switchyard status {of['app']}` lists them",
            )
        _refuse_unfit(app, source, of, release)
        result = release.spec.outputs[of["result"]]
        found[source] = InputSpec(
            topic=release.result_topics[of["result"]], partitions=result.partitions, release=release.name
        )
    return found


def _live(state: RegistryState, app: str, source: str, read: str) -> Release:
    live = live_release(state, read)
    if live is None:
        raise Refused(
            f"input {source} of {app} is the result of {read}, but no release of {read} is live",
            fix=f"`switchyard promote {read} --execute` makes one live; or name one with --upstream {read}.v1",
        )
    return live


def _refuse_unfit(app: str, source: str, of: Mapping[str, Any], release: Release) -> None:
    """Raises BadUsage if an input can't be read from a release's result as the definition says."""
    what, outputs = f"input {source} of {app}", release.spec.outputs
    result = outputs.get(of["result"])
    if result is None:
        named = join([name for name in outputs if name])
        raise BadUsage(
            f"{what} reads result {of['result'] or 'without a name'} of {release.name}, which it does not have",
            fix=f"its results are {named}: ResultOf({of['app']!r}, {next(iter(outputs))!r})"
            if named
            else f"it has one: ResultOf({of['app']!r})",
        )
    if result.table is not of["table"]:
        kind, input_ = ("table", "Changelog") if result.table else ("stream", "Stream")
        raise BadUsage(f"{what}: the result of {release.name} is a {kind}", fix=f"read it as a {input_}")
    _refuse_other_key(what, of, release.name, result)
    _refuse_other_value(what, of, release.name, result)


def _refuse_other_key(what: str, of: Mapping[str, Any], release: str, result: ResultSpec) -> None:
    """Raises BadUsage if an input can't read the keys of a release's result."""
    if of["key_as"] is None:
        return
    if not result.key:
        raise BadUsage(f"{what} reads the keys of {release}, but its records have none", fix="leave out key")
    whole = f"key={_as_json(result, result.key)}"
    if of["key_as"] != "JSON":
        raise BadUsage(
            f"{what} reads the keys of {release} as text, but they are JSON objects", fix=f"read them with {whole}"
        )
    if lacks := [name for name in of["key"] if name not in result.key]:
        raise BadUsage(
            f"{what}: the result of {release} has no column {join(lacks)} in its key",
            fix=f"its key has {join(result.key)}, its value {join(result.value)}",
        )
    if result.table and (left := [name for name in result.key if name not in of["key"]]):
        raise BadUsage(
            f"{what} reads a part of the key of {release}, without {join(left)}: rows that differ only in that would "
            "overwrite each other",
            fix=f"read the whole key, {whole}",
        )


def _refuse_other_value(what: str, of: Mapping[str, Any], release: str, result: ResultSpec) -> None:
    """Raises BadUsage if an input can't read the values of a release's result. Whatever they are, they are bytes."""
    encoding = "JSON" if result.avro is None else "Avro"
    if of["value_as"] not in (encoding, "bytes") and (of["value_as"], encoding) != ("text", "JSON"):
        raise BadUsage(
            f"{what} reads the values of {release} as {of['value_as']}, but they are {encoding}",
            fix="read them with value="
            + (_as_json(result, result.value) if result.avro is None else "Avro(SCHEMA) and the schema of that result"),
        )
    if lacks := [name for name in of["value"] if name not in result.value]:
        raise BadUsage(
            f"{what}: the result of {release} has no column {join(lacks)} in its value",
            fix=f"its key has {join(result.key) or 'nothing'}, its value {join(result.value)}",
        )
    if result.avro is not None and of["avro"] is not None and not begins_with(result.avro, of["avro"]):
        raise BadUsage(
            f"{what} has another Avro schema than the result of {release}: Avro's binary form has no field names, so the "
            "fields must be the first ones of that schema, in its order and with its types",
            fix=f"use the schema of that result: {result.avro}",
        )


def _as_json(result: ResultSpec, columns: Sequence[str]) -> str:
    """How to declare these columns of a result: `Json("ticker string NOT NULL, day string NOT NULL")`."""
    required = " NOT NULL" if tuple(columns) == result.key else ""
    return f'Json("{", ".join(f"{name} {result.types[name]}{required}" for name in columns)}")'


def begins_with(written: str, read: str) -> bool:
    """Whether a record of the Avro schema `written` starts with all fields of the schema `read`."""
    ours, theirs = ([_field(each) for each in json.loads(schema)["fields"]] for schema in (read, written))
    return ours == theirs[: len(ours)]


def _field(schema: Any) -> Any:
    """A field or a type of an Avro schema, without what does not change its binary form."""
    if isinstance(schema, list):
        return [_field(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _field(value) for name, value in schema.items() if name not in _NOT_IN_BYTES}
    # {"type": "string"} is "string"
    return found["type"] if set(found) == {"type"} else found


def columns_read(
    state: RegistryState, upstream: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, InputSpec]
) -> dict[str, str]:
    """Source -> the columns of the result that it reads, Spark DDL. `upstream`: as for `pinned`, which found `inputs`."""
    return {
        source: state.releases[release].spec.outputs[of["result"]].schema_ddl
        for source, of in upstream.items()
        if (release := inputs[source].release) is not None
    }


def reads(spec: ReleaseSpec, other: ReleaseSpec | None) -> dict[str, str]:
    """What a plan says about the releases whose results a release reads. `other`: the app's live release."""
    found = {}
    for source, given in spec.inputs.items():
        if given.release is not None:
            theirs = other.inputs.get(source) if other is not None else None
            differs = theirs is not None and theirs.topic != given.topic
            found[f"input {source}"] = f"the result of {given.release}, {given.topic}" + (
                f"; {other.release} reads {theirs.topic}"
                if differs and other is not None and theirs is not None
                else ""
            )
    return found


def read_by_name(state: RegistryState, spec: ReleaseSpec, tables: Sequence[str]) -> tuple[str, ...]:
    """Warnings about inputs that are results of releases, but are read by their topic. `tables`: sources read as tables.

    Raises BadUsage for a table that is read as a stream, because compaction removes records from it.
    """
    warnings = []
    for source, given in spec.inputs.items():
        owner = next((r for r in state.releases.values() if given.topic in r.all_results), None)
        if owner is None or given.release is not None:
            continue
        result = result_of(given.topic)
        better = f"ResultOf({owner.spec.app!r}{f', {result!r}' if result else ''})"
        if owner.spec.outputs[result].table and source not in tables:
            raise BadUsage(
                f"input {source} of {spec.app}: {given.topic} is a table, the result of {owner.name}",
                fix=f"read it as a table: Changelog(topic={better}, ...)",
            )
        warnings.append(
            f"{given.topic} is the result of {owner.name}: with topic={better}, each new version reads the live release"
        )
    return tuple(warnings)
