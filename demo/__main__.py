"""`python -m demo`, or `make demo`: the main job from end to end, on trades expanded from real daily prices."""

from __future__ import annotations

import os
import sys

from demo.run import Demo
from pipelines.errors import SwitchyardError


def main() -> int:
    try:
        with Demo(ui=os.environ.get("UI", "1") != "0", ui_port=int(os.environ.get("UI_PORT", "3000"))) as demo:
            return demo.run()
    except SwitchyardError as error:
        print(error.told, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: the broker and the drivers of the demo are stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
