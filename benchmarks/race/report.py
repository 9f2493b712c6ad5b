"""A table in Markdown and a chart of what `python -m benchmarks race` has found: `python -m benchmarks.race.report
CHART.png FILE.json ...`. Each file holds the queries of one run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.race.measuring import OURS

NAMES = {
    OURS: "Switchyard",
    "flink": "Flink SQL",
    "streams": "Kafka Streams",
    "spark": "plain Spark",
    "raw": "a consumer alone",
}
_COLORS = {OURS: "#3f51b5", "flink": "#e6526f", "streams": "#444444", "spark": "#f2a33a"}


def table(report: Mapping[str, Any]) -> list[str]:
    """The lines of the table: a row for each query and engine."""
    lines = [
        "| query, records | engine | records/s | our ratio | warm records/s | our ratio | first commit | results |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for query, measured in report["queries"].items():
        engines, records = measured["engines"], measured["records"] / 1e6
        for engine in (name for name in NAMES if name in engines):
            found = engines[engine]
            same = {True: "equal", False: "differ"}.get(found.get("equal"), "")
            first = f"{found['first_s'][1]:.1f} s" if "first_s" in found else ""
            cells = [f"`{query}`, {records:g}M", NAMES[engine], *_rate(found, "records_per_s", "ratio")]
            lines.append(f"| {' | '.join([*cells, *_rate(found, 'warm_records_per_s', 'warm_ratio'), first, same])} |")
    return lines


def _rate(found: Mapping[str, Any], rate: str, ratio: str) -> Sequence[str]:
    if rate not in found:
        return ["", ""]
    least, median, most = (f"{value / 1000:,.0f}" for value in found[rate])
    return [f"{median}k ({least} to {most})", f"{found[ratio]}" if ratio in found else ""]


def chart(report: Mapping[str, Any], path: Path) -> None:
    """Writes a chart as PNG: the median rate of each engine, warm and from the start, query by query."""
    # only the chart needs it, and it takes a second
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    queries = {name: measured["engines"] for name, measured in report["queries"].items()}
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for axis, rate, title in zip(
        axes, ("records_per_s", "warm_records_per_s"), ("from the start", "warm"), strict=True
    ):
        for place, name in enumerate(_COLORS):
            _bars(axis, queries, name, rate, place)
        axis.set_xticks(range(len(queries)), list(queries))
        axis.set_title(title)
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("thousand records/s")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bars(axis: Any, queries: Mapping[str, Any], engine: str, rate: str, place: int) -> None:
    """An engine's bar for each query that it has a rate of, at its place beside the others, from the left."""
    width = 0.8 / len(_COLORS)
    shift = (place - (len(_COLORS) - 1) / 2) * width
    found = {number: of[engine][rate] for number, of in enumerate(queries.values()) if rate in of.get(engine, {})}
    if not found:
        return
    least, median, most = ([value / 1000 for value in each] for each in zip(*found.values(), strict=True))
    spread = [
        [m - low for low, m in zip(least, median, strict=True)],
        [h - m for m, h in zip(median, most, strict=True)],
    ]
    at = [number + shift for number in found]
    axis.bar(at, median, width * 0.92, color=_COLORS[engine], label=NAMES[engine], yerr=spread, ecolor="#999999")


def main() -> None:
    path, *files = map(Path, sys.argv[1:])
    report: dict[str, Any] = {"queries": {}}
    for file in files:
        report["queries"] |= json.loads(file.read_text())["queries"]
    print("\n".join(table(report)))
    chart(report, path)


if __name__ == "__main__":
    main()
