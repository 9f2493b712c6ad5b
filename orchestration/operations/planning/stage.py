"""Plans to stage a release: freezes and tries its code, and creates its topics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypedDict

from orchestration.operations.lifecycle import find_release, live_release
from orchestration.operations.looking.costs import replay_rate, room_of, time_of
from orchestration.operations.looking.durability import cluster_notes, durability_notes, own_topics
from orchestration.operations.looking.future import future_notes
from orchestration.operations.looking.history import History, compaction_notes, history_of_staging
from orchestration.operations.looking.missing_topics import how_to_create
from orchestration.operations.looking.platform import this_platform
from orchestration.operations.looking.progress import processed
from orchestration.operations.looking.tables import KeptTable, TopicRead, kept_tables, read_topics
from orchestration.operations.planning.changes import changes
from orchestration.operations.planning.kinds import (
    other_input,
    refuse_other_encoding,
    refuse_other_input,
    refuse_other_results,
)
from orchestration.operations.planning.tables import malformed_notes, other_tables, table_facts
from orchestration.operations.planning.topics import create_results
from orchestration.operations.planning.upstream import columns_read, pinned, read_by_name, reads
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, new_id
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.releases import CreateTopic, RecordRelease, StoreCode, StoreTable
from orchestration.operations.reading import Reading
from orchestration.operations.trials import TRYING, default_code_dir, probe, require_suites
from pipelines.engine.code import FrozenCode, freeze, frozen
from pipelines.engine.known import Known
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.topics import PROGRESS, RESULT_STREAM
from pipelines.model.entries import (
    GenerationStarted,
    HistoryAccepted,
    InputSpec,
    ReleaseSpec,
    ResultSpec,
    Staged,
    TopicsKnown,
)
from pipelines.model.missing import InputNow
from pipelines.model.names import dead_letter_topic, progress_topic, release_name
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import RegistryState, Release


class Asked(TypedDict, total=False):
    """What to stage, in the words of `plan_stage`, for operations that stage among other things."""

    version: int | None
    code_dir: Path | None
    same_as: str | None
    settings: Mapping[str, Any] | None
    correction: str | None
    accept_missing: bool
    upstream: Sequence[str]


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
    upstream: Sequence[str] = (),
) -> Plan:
    """Plans a new release of `app`: freezes its code, tries its function on empty input, and creates its topics.

    `version`: None for the next free one. `same_as`: a release whose frozen code and settings to use instead of a
    folder's code; `settings` override these. `correction`: the reason to run unchanged code again. `accept_missing`:
    the release may lack input that the live release has read and that Kafka no longer keeps. `upstream`: releases whose
    results to read instead of those of the live releases.

    Raises BadUsage for an unknown app, topic or setting, and for mistakes in the app; Refused if the version is already
    staged, if nothing has changed, or if consumers can't move to it; MissingHistory.
    """
    state = context.state_for_planning()
    name, number = _free_name(state, app, version)
    code, origin, given = _code_of(context, state, app, code_dir, same_as, settings)
    before = _predecessor(state, state.of_app(app), app)
    facts, inputs, tables = _tried(context, state, app, code, given, before, upstream)
    results = {name: ResultSpec(**result) for name, result in facts["results"].items()}
    spec = ReleaseSpec(
        release=name,
        app=app,
        version=number,
        module=facts["module"],
        code_digest=code.digest,
        settings=facts["settings"],
        inputs=inputs,
        **next(iter(results.values())).model_dump(),
        results={} if "" in results else results,
        watermark=facts["watermark"],
        comparable=facts["comparable"],
        reset_allowed=facts["reset_allowed"],
        change=_change(before, results, facts["settings"], code.digest),
        correction=correction,
        platform=this_platform(),
        static_tables={table: each.spec for table, each in tables.items()},
    )
    if (live := live_release(state, app)) is not None:
        # refused here, so that it does not show only at the diff, after the whole history is read
        refuse_other_results(live.spec, spec)
        refuse_other_input(live.spec, spec)
    if before is not None:
        refuse_other_encoding(before.spec, spec, is_live=live is not None)
    _refuse_no_change(spec, before)
    return _plan_of(context, state, spec, code, origin, before, facts, tables, accept_missing=accept_missing)


def _tried(
    context: Reading,
    state: RegistryState,
    app: str,
    code: FrozenCode,
    given: Mapping[str, Any],
    before: Release | None,
    upstream: Sequence[str],
) -> tuple[dict[str, Any], dict[str, InputSpec], dict[str, KeptTable]]:
    """What the trial of an app has found, its sources, and its static tables, whose topics are read for it."""
    inputs: dict[str, InputSpec] = {}
    topics: dict[str, TopicRead] = {}
    results = before.spec.outputs if before is not None else {}
    with TemporaryDirectory(prefix="switchyard-tables-", ignore_cleanup_errors=True) as folder:

        def check(definition: Mapping[str, Any]) -> Known:
            require_suites(definition, code)
            named = _inputs_of(context, app, {**definition["inputs"], **definition["static"]}, definition["watermark"])
            found = {**named, **pinned(state, app, definition["upstream"], upstream)}
            inputs.update({source: found[source] for source in definition["sources"]})
            topics.update(read_topics(context, definition["static"], Path(folder)))
            return Known(
                avro={result: each.avro for result, each in results.items() if each.avro is not None},
                upstream=columns_read(state, definition["upstream"], inputs),
                records={table: str(each.records) for table, each in topics.items()},
                table_max_bytes=context.settings.static_table_max_bytes,
            )

        context.say(TRYING)
        facts = probe(context.settings, code, app, given, check)
        return facts, inputs, kept_tables(topics, facts["static_tables"])


def _free_name(state: RegistryState, app: str, version: int | None) -> tuple[str, int]:
    """The name and version of the new release. Raises BadUsage for an invalid version, Refused for one that exists."""
    number = version if version is not None else max((r.spec.version for r in state.of_app(app)), default=0) + 1
    if number < 1:
        raise BadUsage(
            f"version {number} of {app} is not valid", fix="versions are 1, 2, 3 ...; leave out --version for the next"
        )
    name = release_name(app, number)
    if name in state.releases:
        raise Refused(
            f"{name} is already staged ({state.releases[name].state})",
            fix=f"a release never changes; `switchyard stage {app} [--from FOLDER]` without --version takes the next number",
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
    """The code, its origin, and the settings given for it."""
    given = dict(settings or {})
    if same_as is None:
        return freeze(code_dir or default_code_dir()), str(code_dir or "pipelines/apps"), given
    model = model_for(state, app, same_as, code_dir)
    return frozen(context.settings, model.spec.code_digest, model.name), model.name, {**model.spec.settings, **given}


def _inputs_of(context: Reading, app: str, topics: Mapping[str, str], watermark: str | None) -> dict[str, InputSpec]:
    """Source -> its topic, and what it is like. Raises BadUsage for topics that do not exist. `watermark`: the app's."""
    counts = {source: context.cluster.partition_count(topic) for source, topic in topics.items()}
    missing = {source: topics[source] for source, count in counts.items() if count is None}
    if missing:
        raise BadUsage(
            "; ".join(f"input {source} of {app}: topic {topic} does not exist" for source, topic in missing.items()),
            fix=how_to_create(context.settings, app, list(dict.fromkeys(missing.values())), watermark),
        )
    return {
        source: InputSpec(topic=topics[source], partitions=count)
        for source, count in counts.items()
        if count is not None
    }


def _refuse_no_change(spec: ReleaseSpec, before: Release | None) -> None:
    same = before is not None and before.spec.topics == spec.topics and not other_tables(before.spec, spec)
    if spec.change == "none" and same and spec.correction is None:
        tables = ", same static tables" if spec.static_tables else ""
        raise Refused(
            f"{spec.release} would be the same as {before.name if before else ''}: same code, same settings{tables}",
            fix="change something, or say why it runs again with --correction REASON (late data, an upstream fix)",
        )


def _plan_of(
    context: Reading,
    state: RegistryState,
    spec: ReleaseSpec,
    code: FrozenCode,
    origin: str,
    before: Release | None,
    facts: Mapping[str, Any],
    kept: Mapping[str, KeptTable],
    *,
    accept_missing: bool,
) -> Plan:
    """The plan that stages `spec`. `facts`: what its trial has found. `kept`: its static tables.

    The release will read from the first offsets that its inputs keep now.
    """
    app, name, tables = spec.app, spec.release, facts["tables"]
    topics = sorted({i.topic for i in spec.inputs.values()})
    first, end = context.cluster.first_offsets(topics), context.cluster.end_offsets(topics)
    start = SourcePosition(sources={source: first[i.topic] for source, i in spec.inputs.items()})
    replay = SourcePosition(sources={source: end[i.topic] for source, i in spec.inputs.items()}).records_since(start)
    history, now = history_of_staging(context, state, app, name, spec.topics, start)
    history.require(accept=accept_missing)
    live = live_release(state, app)
    return Plan(
        id=new_id("stage"),
        operation=Kind.STAGE,
        releases=(name,),
        stages=(
            *(StoreTable(digest=each.file.digest, data=each.file.data) for each in kept.values()),
            *_stages(context, state, spec, code, start, now, history),
        ),
        reason=spec.correction,
        facts={
            "app": app,
            "code": f"{code.digest[:12]} from {origin}",
            "change": change_in_words(spec, before),
            "settings": json.dumps(spec.settings) if spec.settings else "none",
            **_result_facts(spec),
            **reads(spec, live.spec if live is not None else None),
            **table_facts(spec, before.spec if before is not None else None),
            "to read": f"{replay:,} records, {time_of(replay_rate(context, state, app, name), name, replay)}",
            "disk": room_of(context, before),
            **history.facts,
        },
        warnings=(
            *changes(before.spec if before is not None else None, spec),
            *input_warnings(live, spec),
            *unchecked(spec),
            *incomparable(spec),
            *facts["notes"],
            *malformed_notes(kept),
            *read_by_name(state, spec, tables),
            *compaction_notes(now, {spec.inputs[source].topic for source in tables}),
            *future_notes(context.settings, now, facts["watermark_delay_ms"]),
            *durability_notes(context.settings, now),
            *cluster_notes(context.settings, context.cluster.replication(own_topics(state.of_app(app)))),
        ),
        undo=f"switchyard retire {name} --after 0s --execute",
    )


def change_in_words(spec: ReleaseSpec, before: Release | None) -> str:
    """What differs most from `before`, in the words of a plan."""
    if before is None:
        return "first release"
    match spec.change:
        case "code":
            return f"code differs from {before.name}"
        case "settings":
            return f"settings differ from {before.name}"
        case "schema":
            return f"key or columns differ from {before.name}"
        case "none" | "first":
            return f"code and settings as in {before.name}"


def _result_facts(spec: ReleaseSpec) -> dict[str, str]:
    return {f"result {n}".rstrip(): f"{result.in_words()}: {result.schema_ddl}" for n, result in spec.outputs.items()}


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
    # the ids of exactly the topics whose first offsets it starts at
    known_topics = TopicsKnown(release=name, generation=1, inputs={t: k.id for t, k in now.items() if k.id})
    return (
        StoreCode(digest=code.digest, data=code.data),
        *create_results(spec, 1),
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
    """The release of `app` whose frozen code is asked for.

    Raises BadUsage if it is another app's, or if a folder is given as well.
    """
    if code_dir is not None:
        raise BadUsage(f"--from {code_dir} and --same-as {same_as} can't be used together", fix="leave one out")
    model = find_release(state, same_as)
    if model.spec.app != app:
        raise BadUsage(f"{model.name} is a release of {model.spec.app}, not of {app}", fix=f"name a release of {app}")
    return model


def _predecessor(state: RegistryState, known: list[Release], app: str) -> Release | None:
    live = live_release(state, app)
    usable = [r for r in known if r.state != "retired"]
    return live or (usable[-1] if usable else None)


def _change(
    before: Release | None, results: Mapping[str, ResultSpec], settings: Mapping[str, Any], digest: str
) -> Literal["first", "none", "settings", "code", "schema"]:
    if before is None:
        return "first"
    if _columns(before.spec.outputs) != _columns(results):
        return "schema"
    if before.spec.code_digest != digest:
        return "code"
    return "none" if before.spec.settings == settings else "settings"


def input_warnings(live: Release | None, spec: ReleaseSpec) -> tuple[str, ...]:
    """A warning if a release reads different topics than the live one."""
    if live is None or live.spec.topics == spec.topics:
        return ()
    return (
        f"{other_input(live.spec, spec)}: they have no input position in common, so a promotion stops {live.name}, "
        "and moves its consumers to the new table as it is at that moment",
    )


def _columns(results: Mapping[str, ResultSpec]) -> dict[str, tuple[tuple[str, ...], str]]:
    """Result name -> its key and its columns."""
    return {name: (result.key, result.schema_ddl) for name, result in results.items()}


def unchecked(spec: ReleaseSpec) -> tuple[str, ...]:
    """A warning for each result of a release that nothing checks before consumers get it."""
    without = [name for name in spec.outputs if name not in spec.suites]
    return tuple(
        f"result {name} of {spec.app} has no suite, so nothing checks it before consumers get it"
        if name
        else f"{spec.app} has no suite, so nothing checks its result before consumers get it"
        for name in without
    )


def incomparable(spec: ReleaseSpec) -> tuple[str, ...]:
    """A warning if a replay may give a different result, so that a diff says nothing about the code."""
    if spec.comparable != "no":
        return ()
    return (f"{spec.release} may give a different result in a replay: its app says that runs can't be compared",)
