"""Shows what an app makes of some records: `python -m pipelines.testing.attempt ZIP DIGEST APP SETTINGS_JSON FOLDER`

First prints what the app's definition says, as `pipelines.engine.probe` does, and waits for a line of input: whoever
started it checks the definition.

Then reads batches of records from standard input, a JSON array of arrays. A record is an object:

    {"input": "trades", "key": "IBM", "value": {"side": "ask", "price": 10.5}, "time": "2026-01-01T12:00:00Z"}

`input` may be left out if the app has one input; `key`, `value`, `time` and `partition` mean what they mean in
`AppTest.send`. `{"watermark": TIME}` moves the watermark instead.

Finally, it prints one JSON object on standard output:
`{"batches": [{"rows", "sources", "late", "dead_letters", "watermark"}]}`, and `results`, the name of each row's result, if the app has several; in the first batch `malformed`, which records of
static tables can't be read, by table; or
`{"error": {"what", "fix", "exit_code"}}`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipelines.engine.code import load
from pipelines.engine.probe import run_on_nothing, values_of
from pipelines.engine.rehearsal import Rehearsal
from pipelines.engine.session import send_code
from pipelines.errors import BadUsage, SwitchyardError
from pipelines.model.app import App
from pipelines.model.names import SOURCE
from pipelines.testing.apptest import AppTest, Batch
from pipelines.testing.exact import plain
from pipelines.testing.session import session

_FIELDS = ("input", "key", "value", "time", "partition")
_EXAMPLE = 'write it like {"key": "IBM", "value": {"side": "ask"}, "time": "2026-01-01T12:00:00Z"}'


def attempt(test: AppTest, app: App, records: list[Any], number: int) -> Batch:
    """Sends the records of one batch and runs it. `number`: of the batch, from 1. Raises BadUsage for a bad record."""
    moved: Batch | None = None
    for line, record in enumerate(records, start=1):
        where = f"batch {number}, record {line}"
        if not isinstance(record, dict):
            raise BadUsage(f"{where} is not a JSON object", fix=_EXAMPLE)
        if set(record) == {"watermark"}:
            moved = test.advance_watermark(_time(record["watermark"], where))
            continue
        if unknown := sorted(set(record) - set(_FIELDS)):
            raise BadUsage(f"{where} has {', '.join(unknown)}; it may have {', '.join(_FIELDS)}", fix=_EXAMPLE)
        source = record.get("input") or next(iter(app.inputs))
        if "input" not in record and len(app.inputs) > 1:
            raise BadUsage(
                f"{where} names no input; app {app.name} has {', '.join(app.inputs)}", fix="add one as input"
            )
        test.send(
            source,
            record.get("value"),
            key=record.get("key"),
            time=_time(record.get("time", 0.0), where),
            partition=record.get("partition", 0),
        )
    ran = test.run()
    if moved is None:
        return ran
    return Batch(
        rows=moved.rows + ran.rows,
        sources=moved.sources + ran.sources,
        late=moved.late + ran.late,
        dead_letters=moved.dead_letters + ran.dead_letters,
        watermark=ran.watermark or moved.watermark,
        names=moved.names + ran.names,
    )


def _time(text: Any, where: str) -> float | str:
    from pipelines.testing.apptest import at

    try:
        at(text)
    except (TypeError, ValueError) as error:
        raise BadUsage(f"{where}: {text!r} is not a time", fix="write it like 2026-01-01T12:00:00Z") from error
    return text  # type: ignore[no-any-return]


def _shown(batch: Batch) -> dict[str, Any]:
    return {
        "rows": plain(batch.rows),
        "sources": batch.sources,
        **({"results": batch.names} if any(batch.names) else {}),
        "late": batch.late,
        "dead_letters": [
            # of a row that is too large, only its source may have partition and offset
            {"topic": d.topic, "partition": d.partition, "offset": d.offset, "reason": d.reason}
            | ({"source": d.headers[SOURCE].decode()} if SOURCE in d.headers else {})
            for d in batch.dead_letters
        ],
        "watermark": None if batch.watermark is None else batch.watermark.isoformat(),
    }


def _run(
    path: Path, digest: str, name: str, given: Mapping[str, Any], ask: Callable[[Mapping[str, Any]], Any], folder: str
) -> list[dict[str, Any]]:
    """What the app makes of each batch that `ask` returns. `ask` gets the app's suites: what else it says may need Spark."""
    app, _ = load(path, digest, name, of=name, where=folder)
    known = values_of(app, given)
    batches: list[list[Any]] = ask({"suites": app.suites})
    with session() as spark:
        # what a function hands to Python workers is imported there by name
        send_code(spark, path, digest, name)
        with AppTest(spark, app, **known) as test:
            # what `show` and `stage` refuse is refused here in the same words
            run_on_nothing(spark, app, Rehearsal(spark, app, known))
            shown = [_shown(attempt(test, app, records, number)) for number, records in enumerate(batches, start=1)]
            # the rows of static tables are decided with the first batch
            shown[0] |= {"malformed": test.malformed} if test.malformed else {}
            return shown


def main(arguments: list[str]) -> None:
    path, digest, name, given, folder = arguments
    answers = sys.stdout

    def ask(definition: Mapping[str, Any]) -> Any:
        print(json.dumps({"definition": definition}), file=answers, flush=True)
        # the answer itself does not matter: nothing more can be known without a broker
        sys.stdin.readline()
        return json.load(sys.stdin)

    answer: dict[str, Any]
    # an app that prints must not spoil the answer
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            answer = {"batches": _run(Path(path), digest, name, json.loads(given), ask, folder)}
        except SwitchyardError as error:
            answer = {"error": {"what": error.what, "fix": error.fix, "exit_code": error.exit_code}}
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
