"""Whether the topics that a follower reads are still those that it began with: asked every few seconds.

A topic that was deleted and made again has the same name and another id. An offset in the old one means nothing in the new one,
and Kafka's client reads on all the same where the new one has that offset, too.
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
# how long whoever only waits is held up where Kafka doesn't answer
_BRIEF_S = 1.0


class SameTopics:
    """The registry as it is now, which is to be read after this, and the topic that is read, by Kafka's ids of both.

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
        self._due = self._again = clock() + _EVERY_S
        self.is_another = self._told = False

    def begin(self, topic: str, known: str | None) -> None:
        """`topic` is what is read from here on. `known`: its id, None: as it is now. Raises as `look` does."""
        self._topic, self._id, self.is_another, self._told = topic, known, False, False
        self._ask(self._settings)

    def look(self, *, sure: bool) -> None:
        """Asks again if it is time; `is_another`: the topic that is read is another one by now.

        `sure`: raises Unavailable where Kafka doesn't answer; without, that is asked later. Raises AnotherRegistry.
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
            _log.info("whether %s is still the same topic isn't known: %s", self._topic, error.what)

    def _ask(self, settings: Settings) -> None:
        now = self._ids(settings, [REGISTRY_TOPIC, self._topic] if self._topic else [REGISTRY_TOPIC])
        registry, found = now.get(REGISTRY_TOPIC), now.get(self._topic)
        self._registry = self._registry or registry
        # one that is gone is told by whoever reads it
        if registry not in (None, self._registry):
            raise AnotherRegistry
        self._id = self._id or found
        self.is_another = found not in (None, self._id)
        if self.is_another and not self._told:
            _log.warning("%s is another topic than the one that was read: it was deleted, and made again under the same name; "
                         "nothing of it is read", self._topic)  # fmt: skip
        self._told = self.is_another
        self._due = self._again = self._clock() + _EVERY_S
