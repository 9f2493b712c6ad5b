"""The queries of the race: what each reads and writes, as an app, and as SQL of Flink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

APPS = Path(__file__).parent / "apps"
# how many different members visit
MEMBERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """`app`: of Switchyard. `code_dir`: the folder of the app's module; None: it is in the catalog. `measured`: the topic
    whose records are counted. `tables`: the topics that it reads beside that.

    `columns` of a result with their types in Flink; `key`: those in a record's key. `table`: a later row of the same key
    replaces an earlier one. `select`: Flink's query of the rows, `views`: statements that it needs before. `without`: the
    engines that take no part.
    """

    name: str
    app: str
    code_dir: Path | None
    measured: str
    columns: dict[str, str]
    key: Sequence[str]
    table: bool
    select: str
    tables: Sequence[str] = ()
    # numbers that engines round in different ways
    rounded: Sequence[str] = ()
    # whether each record gives a row, which waits for the watermark
    waits: bool = False
    without: Sequence[str] = ()
    views: Sequence[str] = ()


_TRADE = {"ticker": "STRING", "side": "STRING", "price": "DECIMAL(8, 2)", "size": "INT"}

WINDOWS = Query(
    name="windows",
    app="stock-stats",
    code_dir=None,
    measured="trades",
    columns={
        "ticker": "STRING",
        "window_start": "STRING",
        "lowest_ask": "DECIMAL(8, 2)",
        "trades": "BIGINT",
        "average_ask": "DECIMAL(12, 6)",
    },
    key=("ticker", "window_start"),
    table=True,
    # Spark rounds an exact half of the last digit down, the others round it up
    rounded=("average_ask",),
    views=("CREATE VIEW asks AS SELECT * FROM trades WHERE `side` = 'ask'",),
    select="""
        SELECT `ticker`, DATE_FORMAT(window_start, 'yyyy-MM-dd''T''HH:mm:ss''Z'''), MIN(`price`), COUNT(*),
               CAST(AVG(`price`) AS DECIMAL(12, 6))
        FROM TABLE(HOP(TABLE asks, DESCRIPTOR(`event_time`), INTERVAL '1' SECOND, INTERVAL '5' SECOND))
        GROUP BY `ticker`, window_start, window_end""",
)
FILTER = Query(
    name="filter",
    app="filter-trades",
    code_dir=APPS,
    measured="trades",
    columns=_TRADE,
    key=("ticker",),
    table=False,
    select="SELECT `ticker`, `side`, `price`, `size` FROM trades WHERE `size` > 950",
)
PASS = Query(
    name="pass-through",
    app="pass-trades",
    code_dir=APPS,
    measured="trades",
    columns=_TRADE,
    key=("ticker",),
    table=False,
    select="SELECT `ticker`, `side`, `price`, `size` FROM trades",
)
COUNT = Query(
    name="count",
    app="count-visits",
    code_dir=APPS,
    measured="visits",
    columns={"member": "STRING", "visits": "BIGINT", "page": "INT"},
    key=("member",),
    table=True,
    select="SELECT `member`, COUNT(*), MAX(`page`) FROM visits GROUP BY `member`",
)
JOIN = Query(
    name="join",
    app="join-visits",
    code_dir=APPS,
    measured="visits",
    tables=("members",),
    columns={"member": "STRING", "page": "INT", "level": "INT"},
    key=("member",),
    table=False,
    waits=True,
    # Spark's own API has no such join
    without=("spark",),
    select="""
        SELECT v.`member`, v.`page`, m.`level` FROM visits AS v
        LEFT JOIN members FOR SYSTEM_TIME AS OF v.`event_time` AS m ON v.`member` = m.`member`""",
)
QUERIES = {query.name: query for query in (WINDOWS, FILTER, PASS, COUNT, JOIN)}
