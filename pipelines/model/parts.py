"""The parts of a release, in Kafka and on disk: which are lost, and the way back of each. Pure.

A part is lost where it is gone, or where another one stands under its name: a topic that was deleted and made again has the
same name and another id, and none of its offsets mean what they meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pipelines.errors import SwitchyardError
from pipelines.model.names import HEARTBEATS_TOPIC, REGISTRY_TOPIC, dead_letter_topic, progress_topic
from pipelines.model.registry import Release

Part = Literal[
    "input", "result", "progress", "dead letters", "registry", "heartbeats", "delta", "checkpoint", "frozen code", "evidence",
    "group",
]  # fmt: skip
# without these no batch may be committed: what it writes would go nowhere, or stand beside what is not there any more
VITAL: frozenset[Part] = frozenset({"input", "result", "progress", "registry", "checkpoint"})


_REGISTRY_WAY = (
    "restore the old topic, from a backup of the brokers that has its id; or, where the new one is the registry from now on, "
    "start this process again: it reads that from its beginning"
)


class AnotherRegistry(SwitchyardError):
    """The registry is another topic than the one that this process has read. What both say must not be mixed.

    Not Refused: whoever goes on where a request is refused must not go on with this.
    """

    exit_code = 3

    def __init__(self) -> None:
        super().__init__(
            f"the registry, topic {REGISTRY_TOPIC}, is another topic than the one that this process has read: it was deleted, "
            "and made again under the same name",
            fix=_REGISTRY_WAY,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A part of `release` that is lost. `name`: of the topic, group or file. `how`: whether another one is there instead."""

    release: str
    part: Part
    name: str
    how: Literal["gone", "another"] = "gone"

    @property
    def what(self) -> str:
        if self.how == "another":
            return f"{self.part} {self.name} of {self.release} is another topic than the one it knows: it was deleted, and made again under the same name"
        return f"{self.part} {self.name} of {self.release} is gone"

    @property
    def way(self) -> str:
        """How to have it again."""
        anew = f"`switchyard reset {self.release} --to-earliest --output new --execute`"
        match self.part:
            case "input" if self.how == "another":
                return (
                    f"choose: {anew} with --missing-history accept reads the new topic from its beginning, with a fresh state; "
                    f"or `switchyard stage` goes on as a new release, which begins in the new topic; or restore the old topic, from a backup of the brokers that has its id, "
                    f"and `switchyard start {self.release} --execute`"
                )
            case "input":
                return f"restore it, from a backup of the brokers that has its id; or make it again, and {anew} with --missing-history accept reads that from its beginning"
            case "result" | "progress":
                return f"{anew} makes it anew, from the input"
            case "checkpoint":
                return f"bring the folder back from a backup; or {anew} reads history again"
            case "registry" if self.how == "another":
                return _REGISTRY_WAY
            case "registry":
                return "restore the topic from a backup of the brokers: without it nothing is known of releases, and a new one would take theirs for nobody's"
            case "frozen code":
                return "bring the file back from a backup; or stage the same code again: `switchyard stage` with --from and --correction"
            case "evidence" | "delta":
                return "`switchyard diff` again makes it anew"
            case "dead letters" | "heartbeats" | "group":
                return "it is made again, empty, when a driver next runs"


def parts_of(release: Release) -> dict[str, Part]:
    """Topic -> the part that it is, of what the driver of a release needs."""
    return {
        **dict.fromkeys(release.spec.topics.values(), "input"),
        release.result_topic: "result",
        progress_topic(release.name): "progress",
        dead_letter_topic(release.name): "dead letters",
        REGISTRY_TOPIC: "registry",
        HEARTBEATS_TOPIC: "heartbeats",
    }


def known_ids(release: Release) -> dict[str, str]:
    """Topic -> the id that the registry knows, of what the driver of a release needs."""
    inputs = release.input_ids.get(release.generation, {})
    own = {topic: found for topic, found in release.own_ids.items() if topic in parts_of(release)}
    return {**own, **inputs}


def lost_topics(
    release: Release, parts: Mapping[str, Part], now: Mapping[str, str], *, registry_id: str | None = None
) -> list[Loss]:
    """Those of `parts` (topic -> part) that are gone, or another topic than is known. `now`: topic -> id, of those there are.

    `registry_id`: of the registry that says all this, which can't say it itself.
    """
    known = known_ids(release)
    if registry_id is not None:
        known[REGISTRY_TOPIC] = registry_id
    found = []
    for topic, part in parts.items():
        if topic not in now:
            found.append(Loss(release=release.name, part=part, name=topic))
        elif topic in known and now[topic] != known[topic]:
            found.append(Loss(release=release.name, part=part, name=topic, how="another"))
    return found


def vital(losses: Iterable[Loss]) -> list[Loss]:
    """Those without which a release can't go on."""
    return [loss for loss in losses if loss.part in VITAL]
