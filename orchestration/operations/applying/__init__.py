"""Carrying a plan out: `applier` goes through its stages, and each kind has a function in one of these modules."""

# a stage can be applied only once its function is marked as what applies it
from orchestration.operations.applying import consumers, generations, meeting, releases, switching

__all__ = ["consumers", "generations", "meeting", "releases", "switching"]
