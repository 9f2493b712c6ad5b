"""`python -m demo.ledger APP (--result TOPIC | --log FILE)`: prints the ledger as JSON; exit 0 if clean, else 1."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from demo.ledger.check import INPUTS, check_log, check_result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo.ledger", description="Judge a result by its input.")
    parser.add_argument("app", choices=sorted(INPUTS))
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--result", metavar="TOPIC", help="a result topic, as of now")
    what.add_argument("--log", type=Path, metavar="FILE", help="what a follower recorded, as JSON lines")
    parser.add_argument("--input", metavar="TOPIC", help="another topic than the app's")
    parser.add_argument(
        "--until", type=json.loads, metavar="JSON", help='next input offsets, as {"0": 1200}; else its end'
    )
    parser.add_argument("--bids-are-asks", action="store_true", help="stock-stats: with the mistake of version 1")
    parser.add_argument("--bootstrap", default=_bootstrap(), help="default: %(default)s")
    parser.add_argument("--property", action="append", default=[], metavar="NAME=VALUE", help="of librdkafka")
    asked = parser.parse_args()
    common = {
        "input_topic": asked.input,
        "until": None if asked.until is None else {int(p): int(o) for p, o in asked.until.items()},
        "properties": dict(each.split("=", 1) for each in asked.property),
        **({"bids_are_asks": True} if asked.bids_are_asks and asked.app == "stock-stats" else {}),
    }
    if asked.result:
        ledger = check_result(asked.app, asked.bootstrap, asked.result, **common)
    else:
        ledger = check_log(asked.app, asked.bootstrap, asked.log, **common)
    print(json.dumps(ledger.as_json(), indent=2))
    return 0 if ledger.clean else 1


def _bootstrap() -> str:
    port = os.environ.get("SWITCHYARD_BROKER_PORT", "19092")
    return os.environ.get("SWITCHYARD_BOOTSTRAP_SERVERS") or f"localhost:{port}"


if __name__ == "__main__":
    sys.exit(main())
