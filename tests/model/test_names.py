"""The registry is input: an entry with a name that could lead elsewhere is refused when it is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from orchestration.operations.plans.stages.base import Stage, from_journal, to_journal
from orchestration.operations.plans.stages.releases import DeleteFiles, DeleteGroup, StoreCode, StoreTable
from pipelines.errors import SwitchyardError
from pipelines.model.entries import (
    AnyEntry,
    GenerationStarted,
    Holder,
    LeaseTaken,
    Staged,
    StaticTableSpec,
    decode,
    encode,
)
from pipelines.model.names import (
    MAX_ORDINAL,
    Digest,
    GroupName,
    ModuleName,
    OperationId,
    ReleaseName,
    TopicName,
    dead_letter_topic,
    delta_topic,
    is_app_name,
    is_group_name,
    progress_topic,
    release_name,
    result_topic,
    split_release,
)
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Heartbeat, Progress
from pipelines.model.registry import RegistryState, fold
from tests.engine.test_lease import SPEC
from tests.model.test_registry_entries import ENTRIES, PROGRESS
from tests.operations.plans.test_stages import STAGES

Path = tuple[str | int, ...]

# all fields that become paths, topics, groups, modules or transactional ids
NAMES = {
    "release", "releases", "app", "alias", "module", "code_digest", "digest", "topic", "suite", "op", "id", "other", "old",
    "new", "live", "evidence", "operation", "name", "tables",
}  # fmt: skip
# the name of an operation, as in `promote`, is text
TEXT: set[tuple[str, Path]] = {("opened", ("name",)), ("proposed", ("name",))}

HOSTILE = st.one_of(
    st.sampled_from(
        ["", ".", "..", "/", "/home/x", "../x", "x/../y", "a/b", "a\\b", "a\n", "a\0b", "~/x", "C:\\x", "a.v1/..", "a" * 2_000]
    ),
    st.tuples(st.text(max_size=8), st.sampled_from(["/", "\\", "\0", "\n", " ", ":"]), st.text(max_size=8)).map("".join),
)  # fmt: skip


def named(data: Any, path: Path = ()) -> Iterator[Path]:
    """Where the JSON of an entry has names. A path ends with "*" if the key is a name."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "topics" or (key == "plan" and path == ()):
                yield from ((*path, key, topic, "*") for topic in value if key == "topics")
            elif key in NAMES and isinstance(value, str):
                yield (*path, key)
            elif key in NAMES and isinstance(value, list) and all(isinstance(each, str) for each in value):
                yield from ((*path, key, n) for n in range(len(value)))
            else:
                yield from named(value, (*path, key))
    elif isinstance(data, list):
        for n, each in enumerate(data):
            yield from named(each, (*path, n))


def forged(data: Any, path: Path, text: str | int) -> Any:
    """`data` with the name or number at `path` replaced."""
    copy = json.loads(json.dumps(data))
    *way, last = path
    if last == "*":
        *way, last = way
        at = _at(copy, way)
        at[text] = at.pop(last)
        return copy
    _at(copy, way)[last] = text
    return copy


def _at(data: Any, way: list[str | int]) -> Any:
    for step in way:
        data = data[step]
    return data


ENTRY_NAMES = [
    (data, path)
    for data in (json.loads(encode(entry)) for entry in ENTRIES)
    for path in named(data)
    if (data["kind"], path) not in TEXT
]
STAGE_NAMES = [
    (data, path)
    for data in (json.loads(json.dumps(to_journal(s), default=lambda v: v.model_dump(mode="json")))
                 for s in STAGES if s.journaled)
    for path in named(data)
]  # fmt: skip


# texts and keys that become no path, topic, group, module or command: they are compared, shown, or given to the app
FREE = {
    "actor", "reason", "detail", "name", "failures", "outcomes", "outcomes{}", "docs", "plan{}", "facts{}", "summary{}", "host",
    "boot_id", "namespaces", "error", "state", "avro", "comparable", "correction", "key", "platform", "schema_ddl", "watermark", "settings{}",
    "topic_id", "inputs", "own", "inputs{}", "static_tables{}", "sources{}",
}  # fmt: skip


def free_texts(schema: Any, name: str = "") -> Iterator[str]:
    """The fields of a JSON schema that take any text; `name{}`: those whose keys do."""
    if isinstance(schema, list):
        for each in schema:
            yield from free_texts(each, name)
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    if kind == "string" and not {"pattern", "enum", "const"} & schema.keys():
        yield name
    # where the values are numbers, so are the keys: partitions
    numbers = schema.get("additionalProperties") == {"type": "integer"}
    if kind == "object" and not numbers and not {"properties", "patternProperties", "propertyNames"} & schema.keys():
        yield f"{name}{{}}"
    for key, inner in schema.items():
        if key in ("properties", "$defs"):
            for field, each in inner.items():
                yield from free_texts(each, field)
        elif key not in ("default", "discriminator", "propertyNames"):
            yield from free_texts(inner, name)


@pytest.mark.parametrize("record", [AnyEntry, Progress, Heartbeat])
def test_each_text_of_a_record_has_a_pattern_or_is_known_to_lead_nowhere(record: Any) -> None:
    found = set(free_texts(TypeAdapter(record).json_schema()))
    assert found <= FREE, (
        f"give these a type of pipelines.model.names, or say here that they lead nowhere: {found - FREE}"
    )


def test_every_kind_of_name_is_tried_here() -> None:
    assert {path[-1] for _, path in ENTRY_NAMES} >= {"release", "topic", "code_digest", "module", "id", "alias", "*"}
    assert {path[-1] for _, path in STAGE_NAMES} >= {"release", "name", "evidence", "operation", "alias"}


@pytest.mark.slow
@given(st.sampled_from(ENTRY_NAMES), HOSTILE)
def test_an_entry_whose_name_is_a_path_elsewhere_is_refused(where: tuple[Any, Path], text: str) -> None:
    data, path = where
    if data["kind"] == "switch-aborted" and path == ("alias",) and text == "":
        # the id of an operation without a name
        text = "/"
    with pytest.raises(ValueError):
        decode(json.dumps(forged(data, path, text)).encode())


@pytest.mark.slow
@given(st.sampled_from(STAGE_NAMES), HOSTILE)
def test_a_plan_with_a_name_that_leads_elsewhere_is_refused(where: tuple[Any, Path], text: str) -> None:
    data, path = where
    with pytest.raises(SwitchyardError, match=r"stage \w+ that can't be read"):
        from_journal(forged(data, path, text))


ORDINALS = {
    "version",
    "generation",
    "token",
    "number",
    "old_generation",
    "new_generation",
    "live_generation",
    "switch",
    "result",
}


def numbered(data: Any, path: Path = ()) -> Iterator[Path]:
    """Where `data` has the number of a version, a generation, a lease or a switch."""
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in pairs:
        if key in ORDINALS and isinstance(value, int):
            yield (*path, key)
        yield from numbered(value, (*path, key))


@pytest.mark.parametrize("record", [*ENTRIES, PROGRESS], ids=lambda record: type(record).__name__)
def test_a_number_that_cannot_be_part_of_a_name_or_be_raised_is_refused(record: Any) -> None:
    data = json.loads(record.model_dump_json())
    for path in numbered(data):
        for number in (-1, MAX_ORDINAL + 1):
            with pytest.raises(ValidationError):
                type(record).model_validate_json(json.dumps(forged(data, path, number)))


def test_a_release_whose_last_number_is_the_largest_says_so() -> None:
    start = SourcePosition(sources={"lines": {0: 5}})
    last = GenerationStarted(release="sums.v1", generation=MAX_ORDINAL, start=start)
    taken = LeaseTaken(release="sums.v1", token=MAX_ORDINAL, holder=Holder(host="h", boot_id="b", pid=1, started=2))
    release = fold(RegistryState(), [Staged(spec=SPEC), last, taken]).releases["sums.v1"]
    with pytest.raises(SwitchyardError, match="can have no further lease") as said:
        assert release.next_token
    assert "switchyard stage sums --execute" in (said.value.fix or "")
    with pytest.raises(SwitchyardError, match="can have no further generation"):
        assert release.next_generation


@pytest.mark.parametrize("digest", ["/home/x/evil", "../evil", "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n"])
def test_a_staged_entry_with_a_digest_that_is_none_is_refused(digest: str) -> None:
    table = StaticTableSpec(topic="rates", topic_id="t", position={0: 1}, rows=1, size_bytes=9, digest="1" * 64)
    staged = Staged(spec=SPEC.model_copy(update={"static_tables": {"rates": table}}))
    for field in ("code_digest", "digest"):
        data = json.loads(encode(staged))
        place = data["spec"] if field == "code_digest" else data["spec"]["static_tables"]["rates"]
        place[field] = digest
        with pytest.raises(ValueError, match=f"{field}: "):
            decode(json.dumps(data).encode())


@pytest.mark.parametrize(
    ("stage", "field"),
    [
        (DeleteFiles(release="/home/x", code_digest=None), "release"),
        (DeleteFiles(release="sums.v1", code_digest="../x"), "code_digest"),
        (DeleteFiles(release="sums.v1", code_digest=None, evidence=("..",)), "evidence.0"),
        (DeleteFiles(release="sums.v1", code_digest=None, tables=("../x",)), "tables.0"),
        (DeleteGroup(group="payments of others"), "group"),
    ],
)
def test_what_is_of_another_place_is_deleted_by_no_plan(stage: Stage, field: str) -> None:
    with pytest.raises(SwitchyardError, match=f"that can't be read: {field}: .*"):
        from_journal(to_journal(stage))


@pytest.mark.parametrize("kind", [StoreCode, StoreTable])
def test_a_file_is_taken_from_no_journal(kind: type[StoreCode | StoreTable]) -> None:
    with pytest.raises(SwitchyardError, match="a stage that stores a file"):
        from_journal(to_journal(kind(digest="0" * 64, data=b"PK")))


@pytest.mark.parametrize("topic", ["..", "a/b", "a b", ""])
def test_an_input_is_a_topic(topic: str) -> None:
    data = json.loads(encode(Staged(spec=SPEC)))
    data["spec"]["inputs"] = {"lines": {"topic": topic, "partitions": 1}}
    with pytest.raises(ValueError, match=r"inputs\.lines\.topic"):
        decode(json.dumps(data).encode())


def test_a_release_is_called_by_its_app_and_version() -> None:
    data = json.loads(encode(Staged(spec=SPEC)))
    data["spec"]["release"] = "others.v1"
    with pytest.raises(ValueError, match=r"version 1 of sums is not called others\.v1"):
        decode(json.dumps(data).encode())


@pytest.mark.parametrize(
    "name", ["sums", "sums-v1", "sumsxv1", "sums/v1", "sums.v", "sums.v1.g1", "sums.v1\n", "Sums.v1"]
)
def test_a_release_is_an_app_a_dot_and_a_version(name: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(ReleaseName).validate_python(name)
    assert split_release(name) is None


@pytest.mark.parametrize("topic", ["../x", ".", "..", "a b", "a" * 250])
def test_progress_and_heartbeats_name_topics_and_releases_too(topic: str) -> None:
    data = json.loads(PROGRESS.model_dump_json())
    with pytest.raises(ValidationError, match="topics"):
        Progress.model_validate_json(json.dumps({**data, "result": {"topics": {topic: {"0": 1}}}}))
    with pytest.raises(ValidationError, match="release"):
        Progress.model_validate_json(json.dumps({**data, "release": topic}))
    with pytest.raises(ValidationError, match="release"):
        Heartbeat(release=topic, generation=1, token=1, host="h", pid=1, at_ms=1, state="running")


# -- what is valid today stays valid

WORD = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)


@pytest.mark.slow
@given(st.lists(WORD, min_size=1, max_size=4).map("-".join), st.integers(1, 10_000))
def test_every_app_of_today_can_be_staged(app: str, version: int) -> None:
    assert is_app_name(app)
    name = release_name(app, version)
    spec = SPEC.model_copy(update={"app": app, "release": name, "version": version})
    assert decode(encode(Staged(spec=spec))) == Staged(spec=spec)


@pytest.mark.slow
@given(st.text("abcXYZ019._-", min_size=1, max_size=249).filter(lambda text: text not in (".", "..")))
def test_every_topic_that_kafka_takes_can_be_an_input(topic: str) -> None:
    assert TypeAdapter(TopicName).validate_python(topic) == topic


def test_the_longest_names_are_names_of_topics() -> None:
    app, operation = "a" * 100, "o" * 128
    release = release_name(app, 10**17)
    assert is_app_name(app) and not is_app_name(app + "a")
    assert len(TypeAdapter(ReleaseName).validate_python(release)) == 120
    topics = [result_topic(release, 10**6, "r" * 100), delta_topic(app, operation), dead_letter_topic(release)]
    assert max(map(len, [*topics, progress_topic(release)])) <= 249
    with pytest.raises(ValidationError):
        TypeAdapter(ReleaseName).validate_python(f"{release}0")


@pytest.mark.parametrize("topic", ["Orders.EU_west-1", "__internal", "a", "...", "..a", "-", "a" * 249])
def test_topics_of_others_have_names_of_their_own(topic: str) -> None:
    assert TypeAdapter(TopicName).validate_python(topic) == topic


@pytest.mark.parametrize("group", ["reader", "team/billing", "Meine Gruppe", "größe", "a:b"])
def test_a_follower_s_group_is_any_text(group: str) -> None:
    assert is_group_name(group) and TypeAdapter(GroupName).validate_python(group) == group


@pytest.mark.parametrize("group", ["", "a\nb", "a\0", "\x1b[2J", "a\x9b", "a" * 1_001])
def test_a_follower_s_group_has_no_control_characters(group: str) -> None:
    assert not is_group_name(group)
    with pytest.raises(ValidationError):
        TypeAdapter(GroupName).validate_python(group)


@pytest.mark.parametrize("module", ["stock_stats", "nested.deep.stats", "my-app", "größe"])
def test_a_module_is_a_file_of_the_code_folder(module: str) -> None:
    assert TypeAdapter(ModuleName).validate_python(module) == module


def test_ids_and_digests_are_those_that_are_made() -> None:
    from orchestration.operations.plans.plan import new_id

    made = new_id("reprocess")
    assert TypeAdapter(OperationId).validate_python(made) == made
    assert TypeAdapter(Digest).validate_python(SPEC.code_digest) == SPEC.code_digest
