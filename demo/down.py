"""`python -m demo.down`, or `make demo-down`: ends what `make demo` left running. Its state stays."""

from __future__ import annotations

import os
from pathlib import Path

from demo.run import ROOT, end_demo
from pipelines.settings import Settings


def main() -> None:
    home = Path(os.environ.get("SWITCHYARD_STATE_DIR") or ROOT / ".switchyard").absolute()
    # its broker is its own, whatever cluster the settings name
    end_demo(Settings.apart(home if home.name == "demo" else home / "demo", bootstrap_servers=None))
    print("the demo is stopped")


if __name__ == "__main__":
    main()
