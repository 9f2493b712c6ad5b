"""Follows an alias: a consumer that moves from release to release with it and gets every result once."""

from pipelines.follow.consumer import LiveConsumer, LiveRecord
from pipelines.follow.group import committed_number
from pipelines.follow.moves import AFRESH, FollowerPosition, Member

__all__ = ["AFRESH", "FollowerPosition", "LiveConsumer", "LiveRecord", "Member", "committed_number"]
