"""Following an alias: a consumer that goes with it from release to release, every result once."""

from pipelines.follow.consumer import LiveConsumer, LiveRecord
from pipelines.follow.group import committed_number
from pipelines.follow.moves import FollowerPosition, Member

__all__ = ["FollowerPosition", "LiveConsumer", "LiveRecord", "Member", "committed_number"]
