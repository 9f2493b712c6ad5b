"""The parts of a release, in Kafka and on disk: which are lost, and how to restore each. Pure.

A part is lost if it was deleted, or if its topic was deleted and recreated under the same name. The new topic has
another id, and the old offsets mean nothing in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipelines.errors import SwitchyardError
from pipelines.model.names import HEARTBEATS_TOPIC, REGISTRY_TOPIC, app_of, dead_letter_topic, progress_topic
from pipelines.model.registry import Release

Part = Literal[
    "input", "result", "progress", "dead letters", "registry", "heartbeats", "delta", "checkpoint", "frozen code", "static table",
    "evidence", "group",
]  # fmt: skip
# without these no batch may be committed: its records would be lost, or would mix with those of another topic
VITAL: frozenset[Part] = frozenset({"input", "result", "progress", "registry", "checkpoint"})


_OWN_FOLDER = (
    "set SWITCHYARD_STATE_DIR to the state folder that the release was staged with, or SWITCHYARD_STORE_URL to its store; if "
    "the file is gone, restore it from a backup"
)
_REGISTRY_WAY = (
    "restore the old topic from a backup of the brokers that keeps its id; or, to use the new registry from now on, "
    "restart this process: it then reads the new one from its start"
)


class AnotherRegistry(SwitchyardError):
    """The registry was recreated since this process read it. What the old and the new one say must not be mixed.

    Not a Refused, as callers may continue after a refused request, but must not continue after this.
    """

    exit_code = 3

    def __init__(self) -> None:
        super().__init__(
            f"the registry, topic {REGISTRY_TOPIC}, was deleted and recreated under the same name "
            "since this process read it",
            fix=_REGISTRY_WAY,
        )


class CutRegistry(SwitchyardError):
    """The registry's first entries were deleted, so its state can't be known from the rest."""

    exit_code = 3

    def __init__(self, first: int) -> None:
        super().__init__(
            f"the registry, topic {REGISTRY_TOPIC}, starts at offset {first}: its first entries were deleted",
            fix="restore the topic from a backup of the brokers. Until then, don't stop drivers that run: they still know the "
            "deleted entries. Check whether the topic has a retention, or whether someone ran `kafka-delete-records.sh`",
        )


def refuse_cut(first: int, start: int) -> None:
    """Raises CutRegistry if a reader that starts at offset `start` would miss entries. `first`: the topic's first offset."""
    if first > start:
        raise CutRegistry(first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A lost part of `release`. `name`: of the topic, group or file. `how`: gone, or recreated under the same name.

    `of`: of an input that is another release's result, that release. `streams`: whether `release` has a stream.
    """

    release: str
    part: Part
    name: str
    how: Literal["gone", "another"] = "gone"
    of: str | None = None
    streams: bool = False

    @property
    def what(self) -> str:
        if self.part == "input":
            # who looks later may find a new topic of that name; it is the same loss, with the same ways back
            return f"{self.part} {self.name} of {self.release} was deleted"
        if self.how == "another":
            return f"{self.part} {self.name} of {self.release} was deleted and recreated under the same name"
        gone = "gone or incomplete" if self.part == "checkpoint" else "gone"
        return f"{self.part} {self.name} of {self.release} is {gone}"

    @property
    def told(self) -> str:
        """What is lost, and what to do."""
        return f"{self.what}; {self.way}"

    @property
    def way(self) -> str:
        """How to restore it, or to continue without it."""
        app = app_of(self.release)
        reset = f"`switchyard reset {self.release} --to-earliest --output new --execute`"
        accepting = f"`switchyard reset {self.release} --to-earliest --output new --missing-history accept --execute`"
        accept = "; add `--missing-history accept` if Kafka no longer keeps all of it"
        match self.part:
            case "input" if self.of is not None:
                follow = (
                    "release the app under another name: consumers of a stream can't continue exactly in another input"
                    if self.streams
                    else f"run `switchyard reprocess {app} --same-as {self.release} --upstream {self.of} --execute`: "
                    "the new version reads it, and consumers move to its table"
                )
                return (
                    f"restore the result of {self.of} first: `switchyard status {self.of}` names the way. If that keeps its topic, "
                    f"run `switchyard start {self.release} --execute`; if that gives it a new one, {follow}"
                )
            case "input":
                return (
                    "restore the old topic from a backup of the brokers that keeps its id, then run "
                    f"`switchyard start {self.release} --execute`. Or create the topic again, unless that is done. "
                    f"Then {accepting} reads it from its start, with an empty state"
                )
            case "result" | "progress":
                return f"run {reset} to write it again from the input{accept}"
            case "checkpoint":
                return f"restore the folder from a backup; or run {reset} to read history again{accept}"
            case "registry" if self.how == "another":
                return _REGISTRY_WAY
            case "registry":
                return "restore the topic from a backup of the brokers: only the registry knows the releases; in a new registry, their topics would belong to no release"
            case "frozen code":
                return f"{_OWN_FOLDER}, {staging_code_again(self.release)}"
            case "static table":
                return f"{_OWN_FOLDER}, {reading_table_again(self.release)}"
            case "evidence" | "delta":
                return f"run `switchyard diff {self.release}` again"
            case "dead letters":
                return (
                    "its driver creates it again, empty; if its login may not, type "
                    f"`switchyard start {self.release} --execute` as an operator"
                )
            case "heartbeats" | "group":
                return "the next driver creates it again, empty"


def lost_checkpoint(release: str, folder: Path) -> Loss:
    """The loss of the checkpoint of `release`. `folder`: of all its checkpoints."""
    return Loss(release=release, part="checkpoint", name=str(folder))


def lost_table(release: str, table: str, path: Path) -> Loss:
    """The loss of the file of static table `table`."""
    return Loss(release=release, part="static table", name=f"{table} ({path})")


def staging_code_again(release: str) -> str:
    """What to do without the frozen code of `release`, if there is no backup. It may be the name of an app."""
    return (
        f"or stage a new version: `switchyard stage {app_of(release)} --from FOLDER --correction REASON --execute`; "
        "with the same code, that also writes this file again"
    )


def reading_table_again(release: str) -> str:
    """What to do without the file of a static table of `release`, if there is no backup."""
    return (
        f"or stage a new version, which reads the topic again: `switchyard stage {app_of(release)} --same-as {release} --correction REASON --execute`; "
        "if the topic still has the same rows, that also writes this file again"
    )


def parts_of(release: Release) -> dict[str, Part]:
    """Topic -> which part it is, for the topics that the driver of a release needs."""
    return {
        **dict.fromkeys(release.spec.topics.values(), "input"),
        **dict.fromkeys(release.result_topics.values(), "result"),
        progress_topic(release.name): "progress",
        dead_letter_topic(release.name): "dead letters",
        REGISTRY_TOPIC: "registry",
        HEARTBEATS_TOPIC: "heartbeats",
    }


def known_ids(release: Release) -> dict[str, str]:
    """Topic -> the id that the registry knows, for the topics that the driver of a release needs."""
    inputs = release.input_ids.get(release.generation, {})
    own = {topic: found for topic, found in release.own_ids.items() if topic in parts_of(release)}
    return {**own, **inputs}


def lost_topics(
    release: Release, parts: Mapping[str, Part], now: Mapping[str, str], *, registry_id: str | None = None
) -> list[Loss]:
    """Those of `parts` (topic -> part) that are gone or recreated. `now`: topic -> id, of the topics that exist.

    `registry_id`: the id of the registry that `release` was read from; the registry can't hold its own.
    """
    known = known_ids(release)
    if registry_id is not None:
        known[REGISTRY_TOPIC] = registry_id
    others = {each.topic: each.release for each in release.spec.inputs.values()}
    streams = bool(release.spec.streams)
    found = []
    for topic, part in parts.items():
        of = others.get(topic) if part == "input" else None
        if topic not in now:
            found.append(Loss(release=release.name, part=part, name=topic, of=of, streams=streams))
        elif topic in known and now[topic] != known[topic]:
            found.append(Loss(release=release.name, part=part, name=topic, how="another", of=of, streams=streams))
    return found


def vital(losses: Iterable[Loss]) -> list[Loss]:
    """Those without which a release can't run."""
    return [loss for loss in losses if loss.part in VITAL]
