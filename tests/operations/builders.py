"""Releases, entries and states of a registry without a broker."""

from __future__ import annotations

from typing import Any

from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.registry import EvidenceRecorded, InputSpec, Release, ReleaseSpec

POSITION = SourcePosition(sources={"trades": {0: 5}})


def spec(name: str = "stock-stats.v1", **changes: Any) -> ReleaseSpec:
    app, _, version = name.rpartition(".v")
    return ReleaseSpec(
        **{
            "release": name,
            "app": app,
            "version": int(version),
            "module": "stock_stats",
            "code_digest": "0" * 64,
            "settings": {"window_s": 5},
            "inputs": {"trades": InputSpec(topic="trades", partitions=1)},
            "table": True,
            "key": ("ticker",),
            "partitions": 1,
            "schema_ddl": "`ticker` string, `trades` bigint",
            "suite": "stock_stats",
            "watermark": None,
            "comparable": "exact",
            "change": "first",
            **changes,
        }
    )


def release(name: str = "stock-stats.v1", **changes: Any) -> Release:
    known = {name: changes.pop(name) for name in list(changes) if name in Release.__dataclass_fields__}
    return Release(spec=spec(name, **changes), **{"generation": 1, "state": "ready", **known})


def evidence(live: str, new: str, **changes: Any) -> EvidenceRecorded:
    summary = {"only_live": 1, "only_new": 2, "changed": 3, "identical": 4}
    return EvidenceRecorded(
        **{
            "id": "diff-1",
            "live": live,
            "live_generation": 1,
            "new": new,
            "new_generation": 1,
            "cut": POSITION,
            "live_result": ResultPosition(topics={}),
            "new_result": ResultPosition(topics={}),
            "summary": summary,
            **changes,
        }
    )
