"""The demo: version 1 of stock-stats is live with a bug; version 2 is reprocessed beside it, compared, checked,
switched to, switched back from and switched to again, while a consumer follows and sees every result once.

Everything happens in a state directory of its own, wiped at the start; every number in the report is measured.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from demo.ledger.check import check_log
from demo.ledger.verify import Ledger
from orchestration.commands.show import show_comparison, show_plan, show_verdict
from orchestration.local.broker import EmbeddedBroker
from orchestration.local.preflight import Problem, check_port
from orchestration.local.running import end_all
from orchestration.local.server_config import ports
from orchestration.operations.context import Context, open_context
from orchestration.operations.execute import execute
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.run import plan_start
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.check import check
from orchestration.operations.procedures.diff import diff
from orchestration.operations.procedures.wait import Hydration, wait_ready
from orchestration.operations.supervising.overview import statuses
from pipelines.errors import SwitchyardError
from pipelines.kafka.offsets import end_offsets
from pipelines.settings import Settings

APP, OLD, NEW = "stock-stats", "stock-stats.v1", "stock-stats.v2"
HISTORY = int(os.environ.get("DEMO_HISTORY", "1000000"))
RATE = int(os.environ.get("DEMO_RATE", "2000"))
# after the last switch, so that the consumer reads the new result for a while
TAIL_S = 5.0
ROOT = Path(__file__).resolve().parents[1]


class Demo:
    """One run of the demo. As a context manager it ends what it started, unless the UI is to stay."""

    def __init__(self, *, ui: bool, ui_port: int) -> None:
        home = Path(os.environ.get("SWITCHYARD_STATE_DIR") or ROOT / ".switchyard").absolute()
        self._report_path = home / "demo-report.json"
        # the progress bar moves with each batch
        self._settings = Settings.apart(home / "demo", max_records_per_batch=400_000)
        self._env = self._settings.child_environment()
        self._ui, self._ui_port = ui, ui_port
        self._console = Console(highlight=False)
        self._started: list[subprocess.Popen[bytes]] = []
        self._context: Context | None = None
        self._steps: dict[str, float] = {}
        self._log = self._settings.state_dir / "follower.jsonl"
        self._keep = False

    def __enter__(self) -> Demo:
        # a stop from outside must clean up as Ctrl-C does
        signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        return self

    def __exit__(self, *_: object) -> None:
        if not self._keep:
            self._end_all()

    # -- the story

    def run(self) -> int:
        """Runs it and writes the report. Returns 0 if the consumer missed nothing and got nothing twice."""
        self._bring_up()
        producer = self._spawn("produce", APP, "--rate", str(RATE))
        self._context = context = open_context(self._settings)
        with self._step("stage and start version 1, whose bug is that bids are taken for asks"):
            execute(context, plan_stage(context, APP, version=1, code_dir=ROOT / "demo" / "v1"))
            execute(context, plan_start(context, OLD))
        with self._step("hydrate version 1"):
            self._hydrate(OLD)
        with self._step("check version 1 and make it live"):
            check(context, OLD)
            execute(context, plan_promote(context, OLD))
        follower = self._follow()
        with self._step("stage version 2, the repository's"):
            staged = plan_stage(context, APP, version=2)
            show_plan(staged)
            execute(context, staged)
            execute(context, plan_start(context, NEW))
        with self._step("hydrate version 2 beside it, from the first offset"):
            hydrated = self._hydrate(NEW)
        with self._step("compare both at exactly the same boundary"):
            found = diff(context, NEW)
            show_comparison(found)
        with self._step("check version 2"):
            verdict = check(context, NEW)
            show_verdict(verdict)
        live_before = self._live()
        with self._step("promote version 2"):
            switch_s = self._switch("promote", NEW)
        with self._step("roll back to version 1"):
            rollback_s = self._switch("rollback", APP)
        with self._step("promote version 2 again"):
            self._switch("promote", NEW)
        live_after = self._live()
        with self._step("let it run, then end the input and let the consumer read to the end"):
            time.sleep(TAIL_S)
            self._end(producer)
            self._settle(follower)
        with self._step("compare what the consumer saw with a recompute of the input"):
            ledger = check_log(APP, self._settings.bootstrap, self._log)
        self._report(
            {
                **hydrated,
                "diff": {n: getattr(found, n) for n in ("only_live", "only_new", "changed", "identical")},
                "checks": {"passed": verdict.passed, "failed": verdict.failed + verdict.errored},
                "switch_s": round(switch_s, 2),
                "rollback_s": round(rollback_s, 2),
                **_figures_of(ledger),
                "live_before": live_before,
                "live_after": live_after,
                "steps_s": self._steps,
            },
            ledger,
        )
        self._finish()
        return 0 if ledger.clean and verdict.ok else 1

    def _bring_up(self) -> None:
        if not self._settings.embedded:
            raise SwitchyardError("the demo brings its own broker", fix="unset SWITCHYARD_BOOTSTRAP_SERVERS")
        with self._step("bring up the broker"):
            self._wipe()
            if self._ui:
                self._require_ui_port()
            EmbeddedBroker(self._settings).start(60)
        with self._step(f"load {HISTORY:,} trades of history"):
            self._command("produce", APP, "--history", str(HISTORY))

    def _report(self, report: dict[str, Any], ledger: Ledger) -> None:
        """Writes the report and shows it, with what the ledger found."""
        self._report_path.write_text(json.dumps(report, indent=2) + "\n")
        self._console.print_json(data=report)
        self._console.print(
            f"the ledger: {ledger.records:,} records delivered, {ledger.duplicates} twice, {ledger.missing} missing, "
            f"{ledger.wrong} wrong, {ledger.steps_back} steps back, over {ledger.input_records:,} trades"
        )
        if ledger.samples:
            self._console.print_json(data=ledger.samples)

    def _hydrate(self, name: str) -> dict[str, Any]:
        """Waits until `name` has caught up, with a bar; figures from its first record to its last of the history."""
        context = self._need()
        target = sum(sum(p.values()) for p in end_offsets(self._settings, ["trades"]).values())
        began: tuple[float, int] | None = None
        reached: tuple[float, int] | None = None
        columns = (TextColumn(name), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rate]}"))
        with Progress(*columns, console=self._console, transient=False) as bar:
            task = bar.add_task(name, total=target, rate="")

            def show(found: Hydration) -> None:
                nonlocal began, reached
                now = time.monotonic()
                began = began or (now, found.position_records)
                if reached is None and found.position_records >= target:
                    reached = (now, found.position_records)
                eta = "" if found.eta_s is None else f", {found.eta_s:.0f} s left"
                bar.update(
                    task,
                    completed=found.position_records,
                    total=found.total_records,
                    rate=f"{found.position_records:,} records, {found.records_per_s:,.0f}/s{eta}",
                )

            wait_ready(context, name, unread_records=2 * RATE, for_s=2.0, timeout_s=300, on_progress=show)
        assert began is not None
        end = reached or (time.monotonic(), target)
        seconds = max(end[0] - began[0], 1e-9)
        records = end[1] - began[1]
        return {
            "hydrate_s": round(seconds, 2),
            "hydrate_records": records,
            "hydrate_records_per_s": round(records / seconds),
        }

    def _switch(self, *command: str) -> float:
        """Runs a switch as a user would; seconds from its start to the consumer's first record of the next link."""
        before = self._last_switch()
        began = time.time()
        self._command(*command, "--execute")
        deadline = time.monotonic() + 60
        while (found := self._first_of(before + 1)) is None:
            if time.monotonic() > deadline:
                raise SwitchyardError(
                    "the consumer got nothing of the other version within 60 s", fix=f"see {self._log}"
                )
            time.sleep(0.02)
        seconds = found - began
        self._console.print(
            f"  {seconds:.2f} s from the start of the command to the consumer's first record of the other version"
        )
        return seconds

    def _live(self) -> str:
        return next(s.release.name for s in statuses(self._need()) if s.live)

    # -- the consumer

    def _follow(self) -> subprocess.Popen[bytes]:
        out = self._log.open("wb")
        return self._spawn("follow", APP, "--group", "demo-consumer", "--json", stdout=out)

    def _lines(self) -> Iterator[dict[str, Any]]:
        with self._log.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def _last_switch(self) -> int:
        return max((each["switch"] for each in self._lines()), default=1)

    def _first_of(self, number: int) -> float | None:
        """When the first record of link `number` arrived, seconds since the epoch; None: not yet."""
        return next((each["at_ms"] / 1000 for each in self._lines() if each["switch"] == number), None)

    def _settle(self, follower: subprocess.Popen[bytes]) -> None:
        """Waits until the live release has read all input and the consumer all of its result; then ends the consumer."""
        context = self._need()
        end = end_offsets(self._settings, ["trades"])["trades"]

        def read() -> bool:
            progress = context.progress(self._live())
            return (
                progress is not None
                and progress.boundary.position.sources["trades"] == end
                and progress.boundary.settled
            )

        context.until("the live release has not read the input to its end", read, timeout_s=60)
        sizes: list[int] = []

        def quiet() -> bool:
            sizes.append(self._log.stat().st_size)
            return len(sizes) > 8 and len(set(sizes[-8:])) == 1

        context.until("the consumer has not come to rest", quiet, timeout_s=60, poll_s=0.25)
        self._end(follower)

    # -- processes

    def _command(self, *arguments: str) -> None:
        self._console.print(f"  $ switchyard {' '.join(arguments)}", style="dim")
        done = subprocess.run([*_SWITCHYARD, *arguments], env=self._env, cwd=ROOT, check=False, stderr=subprocess.PIPE)
        if done.returncode:
            raise SwitchyardError(f"switchyard {' '.join(arguments)} ended with {done.returncode}",
                                  fix=done.stderr.decode().strip())  # fmt: skip

    def _spawn(self, *arguments: str, stdout: Any = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        self._console.print(f"  $ switchyard {' '.join(arguments)} &", style="dim")
        process = subprocess.Popen(
            [*_SWITCHYARD, *arguments], env=self._env, cwd=ROOT, stdout=stdout, stderr=subprocess.DEVNULL
        )
        self._started.append(process)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def _require_ui_port(self) -> None:
        """Before anything long is done: it is wanted at the end."""
        problem = check_port(self._ui_port, "UI_PORT")
        # the broker isn't up yet
        if self._ui_port in ports(self._settings.broker_port):
            problem = Problem(
                f"port {self._ui_port} is busy: the broker and its controller take it", "choose another UI_PORT"
            )
        if problem is not None:
            raise SwitchyardError(problem.what, fix=f"{problem.fix}; or go without: make demo UI=0")

    def _finish(self) -> None:
        if not self._ui:
            self._end_all()
            # the Spark of the checks has its folders there, too
            self._need().session().stop()
            shutil.rmtree(self._settings.state_dir)
            return
        self._spawn("produce", APP, "--rate", str(RATE))
        log = (self._settings.state_dir / "logs" / "dagster.log").open("wb")
        ui = subprocess.Popen(
            [sys.executable, "-m", "orchestration.cli", "ui", "--port", str(self._ui_port)],
            env=self._env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        self._need().until(
            "the Dagster UI does not answer",
            lambda: _answers(self._ui_port),
            timeout_s=90,
            fix=f"see {log.name}",
            poll_s=0.5,
        )
        self._keep = True
        # the store of the user must not be that of the demo's commands
        apart = ("STATE_DIR", "STORE_URL", "SPARK_MASTER")
        environment = self._settings.environment()
        where = " ".join(f"SWITCHYARD_{name}={environment[f'SWITCHYARD_{name}']}" for name in apart)
        self._console.print(
            f"\nthe Dagster UI is at http://127.0.0.1:{self._ui_port} (process group {ui.pid}); "
            f"both versions run on, and {RATE:,} trades a second come in\n"
            f"  terminal:  export {where}\n"
            f"  to end it: make demo-down"
        )

    def _wipe(self) -> None:
        """Ends what a former demo left, by its own record, and deletes its state."""
        end_demo(self._settings)
        if self._settings.state_dir.exists():
            shutil.rmtree(self._settings.state_dir)
        (self._settings.state_dir / "logs").mkdir(parents=True)

    def _end_all(self) -> None:
        for process in self._started:
            self._end(process)
        end_demo(self._settings)

    def _need(self) -> Context:
        if self._context is None:
            raise SwitchyardError("the demo has no cluster yet")
        return self._context

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        self._console.rule(title, align="left")
        began = time.monotonic()
        yield
        self._steps[title] = round(time.monotonic() - began, 2)


_SWITCHYARD = (sys.executable, "-m", "orchestration.cli")


def _figures_of(ledger: Ledger) -> dict[str, Any]:
    return {
        "follower": {"records": ledger.records, "duplicates": ledger.duplicates, "missing": ledger.missing},
        "follower_wrong": ledger.wrong,
        "follower_steps_back": ledger.steps_back,
        "input_records": ledger.input_records,
    }


def end_demo(settings: Settings) -> None:
    """Stops the demo's processes, each known by its state directory in its environment, and its broker."""
    end_all([settings.state_dir])
    EmbeddedBroker(settings).stop(30)


def _answers(port: int) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
