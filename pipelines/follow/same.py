"""Whether a follower's topics are still the ones that it started with: checked every few seconds.

A recreated topic has the same name and another id. An offset of the old topic means nothing in the new one, but Kafka's
client would read on if the new topic has that offset, too. And if the broker was restarted before, that client waits for
ever: to it, the leader of the new topic looks older than the one that it knows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from confluent_kafka.admin import AdminClient

from pipelines.errors import Unavailable
from pipelines.kafka.inputs import Ids, topic_ids
from pipelines.model.names import REGISTRY_TOPIC
from pipelines.model.parts import AnotherRegistry
from pipelines.settings import Settings

_log = logging.getLogger(__name__)

_EVERY_S = 5.0
# how long the check may delay a waiting follower if Kafka doesn't answer
_BRIEF_S = 1.0


class SameTopics:
    """Kafka's ids of the registry, of the topic that is read, and of its release's progress topic. Create it before the
    registry is read.

    Raises Unavailable without a broker.
    """

    def __init__(
        self,
        settings: Settings,
        client: AdminClient,
        *,
        ids: Ids | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._ids = ids or (lambda settings, topics: topic_ids(settings, topics, client=client))
        self._clock = clock
        self._registry = self._ids(settings, [REGISTRY_TOPIC]).get(REGISTRY_TOPIC)
        self._topic = ""
        self._id: str | None = None
        self._progress = ""
        # topic -> its id when the follower's clients first read it
        self._progress_ids: dict[str, str] = {}
        self._due = self._again = clock() + _EVERY_S
        self.is_another = self.has_other_progress = self._told = False

    def begin(self, topic: str, known: str | None, progress: str | None = None) -> None:
        """Notes that `topic` is read from now on, and `progress` beside it. `known`: the id of `topic`; None: its current
        id. Raises as `look` does.
        """
        self._topic, self._id, self.is_another, self._told = topic, known, False, False
        self._progress = progress or ""
        self._ask(self._settings)

    def forget_progress(self) -> None:
        """Notes that new clients read the progress topic, as it is now. Raises as `look` does."""
        self._progress_ids.clear()
        self._ask(self._settings)

    def look(self, *, sure: bool) -> None:
        """Checks again if it is time. `is_another`: the topic that is read was recreated; `has_other_progress`: the
        progress topic was.

        `sure`: raises Unavailable if Kafka doesn't answer; otherwise it asks again later. Raises AnotherRegistry.
        """
        now = self._clock()
        if now < (self._due if sure else self._again):
            return
        self._again = now + _EVERY_S
        settings = self._settings if sure else self._settings.model_copy(update={"request_timeout_s": _BRIEF_S})
        try:
            self._ask(settings)
        except Unavailable as error:
            if sure:
                raise
            _log.info("couldn't check whether %s is still the same topic: %s", self._topic, error.what)

    def _ask(self, settings: Settings) -> None:
        now = self._ids(settings, [topic for topic in (REGISTRY_TOPIC, self._topic, self._progress) if topic])
        registry, found = now.get(REGISTRY_TOPIC), now.get(self._topic)
        self._registry = self._registry or registry
        # a missing topic is reported by whoever reads it
        if registry not in (None, self._registry):
            raise AnotherRegistry
        self._id = self._id or found
        self.is_another = found not in (None, self._id)
        if self.is_another and not self._told:
            _log.warning("%s was deleted and recreated under the same name; "
                         "the follower reads nothing from the new one", self._topic)  # fmt: skip
        self._told = self.is_another
        progress = now.get(self._progress)
        first = self._progress_ids.setdefault(self._progress, progress) if progress else None
        self.has_other_progress = progress != first
        self._due = self._again = self._clock() + _EVERY_S
