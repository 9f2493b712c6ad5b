"""A new release: its code frozen and tried, its topics its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from expectations.names import require_suite
from orchestration.operations.lifecycle import find_release, live_release
from orchestration.operations.looking.costs import replay_rate, room_of, time_of
from orchestration.operations.looking.history import History, compaction_notes, history_of_staging
from orchestration.operations.looking.progress import processed
from orchestration.operations.planning.probe import probe
from orchestration.operations.planning.topics import create_result
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, new_id
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.releases import CreateTopic, RecordRelease, StoreCode
from orchestration.operations.reading import Reading
from pipelines.engine.code import FrozenCode, freeze, frozen
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.topics import PROGRESS, RESULT_STREAM
from pipelines.model.missing import InputNow
from pipelines.model.names import dead_letter_topic, progress_topic, release_name
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import (
    GenerationStarted,
    HistoryAccepted,
    InputSpec,
    RegistryState,
    Release,
    ReleaseSpec,
    Staged,
    TopicsKnown,
)


def default_code_dir() -> Path:
    """The repository's own apps."""
    import pipelines.apps

    return Path(pipelines.apps.__path__[0])


def _how_to_fill(app: str) -> str:
    from orchestration.sources import app_names

    return f"create it{f', or fill it: `switchyard produce {app} --history 100000`' if app in app_names() else ''}"


def plan_stage(
    context: Reading,
    app: str,
    *,
    version: int | None = None,
    code_dir: Path | None = None,
    same_as: str | None = None,
    settings: Mapping[str, Any] | None = None,
    correction: str | None = None,
    accept_missing: bool = False,
) -> Plan:
    """A new release of `app`: its code frozen, its function tried on empty frames, its topics its own.

    `version`: None for the next free one. `same_as`: a release whose frozen code and settings it takes, instead of a
    folder's; `settings` are on top. `correction`: why unchanged code runs again. `accept_missing`: it may
    lack input that the live release has read and Kafka has no more. Raises BadUsage for an unknown app, topic or setting and
    for what the author must mend; Refused for a version staged already or without a change; MissingHistory.
    """
    state = context.standing()
    name, number = _free_name(state, app, version)
    code, origin, given = _code_of(context, state, app, code_dir, same_as, settings)
    facts = probe(context, code, app, given)
    if facts["suite"] is not None:
        # not at its first check, after all of history is read
        require_suite(facts["suite"])
    inputs = _inputs_of(context, app, facts)
    before = _predecessor(state, state.of_app(app), app)
    spec = ReleaseSpec(
        release=name,
        app=app,
        version=number,
        module=facts["module"],
        code_digest=code.digest,
        settings=facts["settings"],
        inputs=inputs,
        table=facts["table"],
        key=tuple(facts["key"]),
        partitions=facts["partitions"],
        schema_ddl=facts["schema_ddl"],
        suite=facts["suite"],
        watermark=facts["watermark"],
        comparable=facts["comparable"],
        reset_allowed=facts["reset_allowed"],
        change=_change(before, facts, code.digest),
        correction=correction,
        platform=_platform(),
    )
    _refuse_another_kind(live_release(state, app), spec)
    _refuse_no_change(spec, before)
    return _plan_of(context, state, spec, code, origin, before, accept_missing=accept_missing)


def _free_name(state: RegistryState, app: str, version: int | None) -> tuple[str, int]:
    """The name and the version of the new release. Raises BadUsage for a version that can't be, Refused for one that is."""
    number = version if version is not None else max((r.spec.version for r in state.of_app(app)), default=0) + 1
    if number < 1:
        raise BadUsage(f"version {number} of {app} can't be", fix="versions are 1, 2, 3 ...; leave it out for the next")
    name = release_name(app, number)
    if name in state.releases:
        raise Refused(
            f"{name} is staged already ({state.releases[name].state})",
            fix="stage another version; a release never changes",
        )
    return name, number


def _code_of(
    context: Reading,
    state: RegistryState,
    app: str,
    code_dir: Path | None,
    same_as: str | None,
    settings: Mapping[str, Any] | None,
) -> tuple[FrozenCode, str, dict[str, Any]]:
    """The code, where it comes from, and the settings that are given for it."""
    given = dict(settings or {})
    if same_as is None:
        return freeze(code_dir or default_code_dir()), str(code_dir or "pipelines/apps"), given
    model = model_for(state, app, same_as, code_dir)
    return frozen(context.settings, model.spec.code_digest, model.name), model.name, {**model.spec.settings, **given}


def _inputs_of(context: Reading, app: str, facts: Mapping[str, Any]) -> dict[str, InputSpec]:
    """Source -> its topic. Raises BadUsage for a topic that isn't there."""
    inputs = {}
    for source, topic in facts["inputs"].items():
        partitions = context.cluster.partition_count(topic)
        if partitions is None:
            raise BadUsage(f"input {source} of {app}: there is no topic {topic}",
                           fix=_how_to_fill(app))  # fmt: skip
        inputs[source] = InputSpec(topic=topic, partitions=partitions)
    return inputs


def _refuse_no_change(spec: ReleaseSpec, before: Release | None) -> None:
    if spec.change == "none" and spec.correction is None:
        raise Refused(
            f"{spec.release} would be {before.name if before else ''} again: same code, same settings",
            fix="say why with --correction REASON (late data, an upstream fix), or change something",
        )


def _plan_of(
    context: Reading,
    state: RegistryState,
    spec: ReleaseSpec,
    code: FrozenCode,
    origin: str,
    before: Release | None,
    *,
    accept_missing: bool,
) -> Plan:
    """The plan that stages `spec`, to read from the first offsets that its inputs have now."""
    app, name = spec.app, spec.release
    topics = sorted({i.topic for i in spec.inputs.values()})
    first, end = context.cluster.first_offsets(topics), context.cluster.end_offsets(topics)
    start = SourcePosition(sources={source: first[i.topic] for source, i in spec.inputs.items()})
    replay = SourcePosition(sources={source: end[i.topic] for source, i in spec.inputs.items()}).records_since(start)
    history, now = history_of_staging(context, state, app, name, spec.topics, start)
    history.require(accept=accept_missing)
    return Plan(
        id=new_id("stage"),
        operation=Kind.STAGE,
        releases=(name,),
        stages=_stages(context, state, spec, code, start, now, history),
        reason=spec.correction,
        facts={
            "app": app,
            "code": f"{code.digest[:12]} from {origin}",
            "change": spec.change + (f" against {before.name}" if before else ""),
            "settings": json.dumps(spec.settings),
            "result": f"{'table' if spec.table else 'stream'} by {', '.join(spec.key)}: {spec.schema_ddl}",
            "replay": f"{replay:,} records, {time_of(replay_rate(context, state, app, name), name, replay)}",
            "disk": room_of(context, before),
            **history.facts,
        },
        warnings=(*_schema_warnings(before, spec), *unchecked(spec), *compaction_notes(now)),
        undo=f"switchyard retire {name} --after 0s --execute",
    )


def _stages(
    context: Reading,
    state: RegistryState,
    spec: ReleaseSpec,
    code: FrozenCode,
    start: SourcePosition,
    now: Mapping[str, InputNow],
    history: History,
) -> tuple[Stage, ...]:
    name = spec.release
    lacks = (HistoryAccepted(release=name, missing=history.left),) if history.left else ()
    # of the very topics whose first offsets it begins at
    known_topics = TopicsKnown(release=name, generation=1, inputs={t: k.id for t, k in now.items() if k.id})
    return (
        StoreCode(digest=code.digest, data=code.data),
        create_result(spec, 1),
        CreateTopic(name=progress_topic(name), partitions=1, config=dict(PROGRESS)),
        CreateTopic(name=dead_letter_topic(name), partitions=1, config=dict(RESULT_STREAM)),
        RecordRelease(
            release=name,
            entries=(
                Staged(spec=spec),
                GenerationStarted(release=name, generation=1, start=start, processed=processed(context, state, spec)),
                known_topics,
                *lacks,
            ),
        ),
    )


def model_for(state: RegistryState, app: str, same_as: str, code_dir: Path | None) -> Release:
    """The release of `app` whose frozen code is asked for. Raises BadUsage for another app's, or beside a folder."""
    if code_dir is not None:
        raise BadUsage(f"code of the folder {code_dir} and the same as {same_as} can't both be", fix="leave one out")
    model = find_release(state, same_as)
    if model.spec.app != app:
        raise BadUsage(f"{model.name} is a release of {model.spec.app}, not of {app}", fix=f"name one of {app}")
    return model


def _predecessor(state: RegistryState, known: list[Release], app: str) -> Release | None:
    live = live_release(state, app)
    usable = [r for r in known if r.state not in ("retired", "aborted")]
    return live or (usable[-1] if usable else None)


def _change(before: Release | None, facts: Mapping[str, Any], digest: str) -> Any:
    if before is None:
        return "first"
    if before.spec.schema_ddl != facts["schema_ddl"] or before.spec.key != tuple(facts["key"]):
        return "schema"
    if before.spec.code_digest != digest:
        return "code"
    return "none" if before.spec.settings == facts["settings"] else "settings"


def _schema_warnings(before: Release | None, spec: ReleaseSpec) -> tuple[str, ...]:
    if before is None or spec.change != "schema":
        return ()
    return (
        f"the result's schema changes from {before.spec.schema_ddl} to {spec.schema_ddl}: consumers must read both",
    )


def unchecked(spec: ReleaseSpec) -> tuple[str, ...]:
    """That nothing checks a release's result before consumers get it."""
    if spec.suite is not None:
        return ()
    return (f"{spec.app} names no suite: its result is checked by nothing before consumers get it",)


def _refuse_another_kind(live: Release | None, spec: ReleaseSpec) -> None:
    # not at its diff, after all of history is read
    if live is not None and live.spec.table != spec.table:
        one, other = (f"{r.release}, a {'table' if r.table else 'stream'}" for r in (live.spec, spec))
        raise Refused(
            f"consumers of {spec.app} can't be moved from {one}, to {other}",
            fix="stage it as an app with another name",
        )


def _platform() -> str:
    from importlib.metadata import version

    return f"switchyard {version('switchyard')}, pyspark {version('pyspark')}"
