"""The driver of a release: its query, its sink, its checkpoint, its lease."""
