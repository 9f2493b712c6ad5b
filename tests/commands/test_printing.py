"""What a command prints of a record, of the registry or of an error: nothing that a terminal obeys, and no markup."""

from __future__ import annotations

import ast
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import orchestration.commands
from orchestration import cli
from orchestration.commands import broker, overview, release, show, terminal
from orchestration.commands.follow import _line, as_object
from orchestration.defs import report
from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.looking.in_use import notes
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, Table
from orchestration.operations.procedures.wait import Hydration
from pipelines.errors import Refused
from pipelines.follow import LiveRecord
from pipelines.kafka.clock import now_ms
from pipelines.logs import VisibleFormatter
from pipelines.model.entries import Carried, Closed, Holder, Opened, StateSet
from tests.operations.builders import Log, context_of, staged

HOSTILE = "[red]x[/red] [link=http://e]y[/] :boom: \x1b[2J\x1b]52;c;aGk=\x07 \x9b31m \x7f \u202e\u2066 a\rb\nok\tc"
SHOWN = r"[red]x[/red] [link=http://e]y[/] :boom: \x1b[2J\x1b]52;c;aGk=\x07 \x9b31m \x7f \u202e\u2066 a\rb\nok\tc"
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)> [a](javascript:b) `c` | d"
_WRITES = ("print", "echo", "secho", "prompt", "confirm", "write", "writelines")
_RICH = ("rich", "click")


def sources() -> Iterator[Path]:
    yield Path(cli.__file__)
    folder = Path(orchestration.commands.__file__).parent
    yield from (path for path in sorted(folder.glob("*.py")) if path != Path(terminal.__file__))


def printing(tree: ast.Module) -> Iterator[str]:
    """How a module would print by itself, with the line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="print", lineno=line):
                yield f"{line}: print"
            case ast.Attribute(attr=name, lineno=line) if name in _WRITES:
                yield f"{line}: {ast.unparse(node)}"
            case ast.Import(names=names, lineno=line):
                yield from (f"{line}: {each.name}" for each in names if each.name.split(".")[0] in _RICH)
            case ast.ImportFrom(module=str(module), lineno=line) if module.split(".")[0] in _RICH:
                yield f"{line}: {module}"


@pytest.mark.parametrize("path", list(sources()), ids=lambda path: path.stem)
def test_no_command_prints_but_by_the_one_way(path: Path) -> None:
    assert list(printing(ast.parse(path.read_text()))) == []


def test_that_would_be_seen() -> None:
    ways = "print(1)\ntyper.echo(1)\nconsole().print(1)\nsys.stdout.write(1)\nfrom rich.table import Table\n(say or print)(1)"
    assert len(list(printing(ast.parse(ways)))) == 6


def obeyed(text: str) -> list[str]:
    """The characters of a text that a terminal would obey, but for the ends of lines."""
    return [char for char in text if not char.isprintable() and char != "\n"]


@pytest.mark.parametrize(
    "show_it",
    [
        lambda: terminal.print_facts({HOSTILE: HOSTILE}),
        lambda: terminal.print_table([HOSTILE], [[HOSTILE]], title=HOSTILE),
    ],
    ids=["facts", "table"],
)
def test_a_cell_shows_what_it_holds_in_one_line(
    show_it: Callable[[], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_WIDTH", 400)
    show_it()
    said = capsys.readouterr().out
    assert SHOWN in said and obeyed(said) == []


def test_a_line_keeps_line_feeds_of_ours_alone(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.out(f"{HOSTILE}\nours")
    terminal.say(HOSTILE)
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert obeyed(text.replace("\t", "")) == [] and r"\x1b[2J" in text and "[red]x[/red]" in text
    assert said.out.endswith("\nours\n")


def test_json_is_escaped_by_its_own_rules(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_json({HOSTILE: [HOSTILE, Path("a")]})
    said = capsys.readouterr().out
    assert said.isascii() and obeyed(said) == []
    assert json.loads(said) == {HOSTILE: [HOSTILE, "a"]}


def record(**changes: Any) -> LiveRecord:
    made = {"number": 1, "release": "a.v1", "phase": "live", "topic": "a.v1.g1", "partition": 0, "offset": 0,
            "key": HOSTILE.encode(), "value": HOSTILE.encode(), "replay": False, "headers": [(HOSTILE, HOSTILE.encode())],
            "position": None, "schema": None, **changes}  # fmt: skip
    return cast(LiveRecord, SimpleNamespace(**made))


def test_a_followed_record_is_one_line_and_can_end_neither_line_nor_key(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.out(_line(record()))
    assert capsys.readouterr().out == f"1  {SHOWN}\t{SHOWN}\n"
    terminal.print_json_line(as_object(record()))
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and obeyed(said) == [] and json.loads(said)["headers"] == {HOSTILE: HOSTILE}


PLAN = Plan(
    id="reset-1", operation=Kind.RESET, releases=("a.v1",), stages=(), facts={"asked": HOSTILE}, warnings=(HOSTILE,),
    tables=(Table(title=HOSTILE, columns=("a", "b"), rows=((HOSTILE, MARKUP),)),), undo=HOSTILE,
)  # fmt: skip


def test_plan_log_and_status_obey_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_WIDTH", 400)
    opened = Opened(id=PLAN.id, name="reset", releases=PLAN.releases, deadline_ms=2**60, plan=PLAN.for_journal(),
                    actor=HOSTILE, reason=HOSTILE)  # fmt: skip
    log = Log(*staged("a.v1"), opened, Closed(id=PLAN.id, outcome="done", op=PLAN.id))
    monkeypatch.setattr("orchestration.operations.context.open_context", lambda *_, **__: context_of(log))
    overview.log(PLAN.id, limit=50)
    held = SimpleNamespace(name="a.v1", state=HOSTILE, spec=SimpleNamespace(app="a"))
    broker._table([cast(Any, SimpleNamespace(release=held, health=HOSTILE, live=True, beat=None))])
    said = capsys.readouterr().out
    assert obeyed(said.replace("\t", "")) == []
    # asked, a cell of the table, who, why, and both of the status; the rest is on lines of their own
    assert said.count(SHOWN) >= 6 and MARKUP in said


def test_what_the_registry_says_starts_no_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(id=PLAN.id, name="reset", releases=PLAN.releases, deadline_ms=2**60, plan=PLAN.for_journal(),
                    actor="ada\nno operation is under way")  # fmt: skip
    carried = Carried(
        id=PLAN.id,
        holder=Holder(host="far away\nno operation is under way", boot_id="b", pid=1, started=2),
        at_ms=now_ms(),
    )
    log = Log(
        *staged("a.v1"), opened, carried, StateSet(release="a.v1", state="failed", reason="lost\na.v1: all is well")
    )
    monkeypatch.setattr("orchestration.operations.context.open_context", lambda *_, **__: context_of(log))
    overview.operations()
    state = log.state()
    failed = SimpleNamespace(release=state.releases["a.v1"], beat=None, notes=notes(state, state.releases["a.v1"]))
    broker._tell_notes([cast(Any, failed)], alone=True)
    monkeypatch.setattr("orchestration.operations.execute.abandon", lambda *_, **__: None)
    monkeypatch.setattr("orchestration.operations.supervising.overview.statuses", lambda _: [failed])
    overview.abandon(PLAN.id)
    waiting = {"position_records": 1, "total_records": 2, "records_per_s": 3.0, "unread_records": 1, "eta_s": None}
    release._bar(as_json=False).update(
        Hydration(release="a.v1", done=False, error="broken\na.v1: all is well", **cast(Any, waiting))
    )
    show.show_plan(replace(PLAN, warnings=("mind\na.v1: all is well",), undo="try\na.v1: all is well"))
    show.show_comparison(replace(Comparison.none(), only_new_columns=("mine\na.v1: all is well",)))
    captured = capsys.readouterr()
    said = captured.out + captured.err
    assert "started by ada" in said and "no other operation on a.v1 until " in said
    assert said.count(r"\nno operation is under way") == 2
    for who in ("lost", "broken", "mind", "try", "mine"):
        assert rf"{who}\na.v1: all is well" in said
    # of the status, and of what is abandoned
    assert said.count(r"lost\na.v1: all is well") == 2
    assert not [line for line in said.splitlines() if line.strip().startswith(("no operation", "a.v1: all is well"))]


def test_a_diff_obeys_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_WIDTH", 900)
    show.show_comparison(comparison())
    said = capsys.readouterr().out
    assert obeyed(said) == [] and said.count(SHOWN) == 4


def comparison() -> Comparison:
    return Comparison(
        only_live=0, only_new=0, changed=1, identical=0, columns={HOSTILE: 1},
        samples=(
            {"key": {"k": HOSTILE}, "live": {"v": HOSTILE}, "new": {"v": HOSTILE}},
            {"key": {"k": MARKUP}, "live": None, "new": None},
        ),
    )  # fmt: skip


def test_dagster_s_markdown_has_no_markup_of_a_record() -> None:
    named = Comparison.together({MARKUP: comparison()})
    for text in (
        PLAN.markdown(), report.comparison_markdown(comparison()), report.comparison_markdown(named),
        report.of_lines([MARKUP, HOSTILE]).value,
    ):  # fmt: skip
        assert text is not None
        assert obeyed(text) == [] and "<" not in text and "](" not in text.replace("\\](", "")
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text and "\\| d" in text


@pytest.mark.parametrize(
    ("error", "code", "parts"),
    [(Refused(HOSTILE, fix=HOSTILE), 3, 2), (ValueError(HOSTILE), 1, 1)],
    ids=["told", "unforeseen"],
)
def test_an_error_and_a_traceback_obey_nothing(
    error: Exception, code: int, parts: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise error

    monkeypatch.setattr("orchestration.commands.broker.load_settings", refuse)
    monkeypatch.setattr(sys, "argv", ["switchyard", "down"])
    # it handles the signals of a process of its own
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().err
    assert end.value.code == code
    assert obeyed(said.replace("\t", "")) == [] and said.count(r"\x1b[2J") == parts
    assert ("Traceback" in said) == (code == 1)


def test_a_log_obeys_nothing_and_keeps_a_traceback_s_lines() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        made = logging.LogRecord("a", logging.ERROR, "f", 1, "failed: %s", (HOSTILE,), sys.exc_info())
    said = VisibleFormatter("%(levelname)s %(message)s").format(made)
    assert obeyed(said.replace("\t", "")) == [] and said.startswith("ERROR failed: [red]x") and "\nTraceback" in said


def test_what_happens_is_told_after_the_plan_where_both_go_to_one_pipe() -> None:
    """Python keeps back what it prints to a pipe, but not its errors."""
    code = "from orchestration.commands.terminal import out, say; out('the plan'); say('step'); out('done')"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    assert printed.stdout.split("\n") == ["the plan", "  step", "done", ""]
