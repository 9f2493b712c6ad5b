"""`switchyard log | operations | resume | abandon | dead-letters | register-follower | forget-follower`: what happened, and
what is under way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.options import Json, Name, Reason
from orchestration.commands.show import run_plan, show_comparison, show_plan
from orchestration.commands.terminal import out, print_json, print_json_line, print_table, say
from pipelines.model.text import counted, utc, visible

if TYPE_CHECKING:
    from orchestration.operations.looking.dead_letters import DeadLetters, Letter
    from pipelines.model.entries import Entry
    from pipelines.model.unread import Unread

Followed = Annotated[str, typer.Argument(metavar="APP", help="The app that it follows.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="Its consumer group.")]


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(log)
    app.command()(operations)
    app.command()(resume)
    app.command()(abandon)
    app.command("dead-letters")(dead_letters)
    app.command("register-follower")(register_follower)
    app.command("forget-follower")(forget_follower)


def log(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A release, an app or an operation; default: all.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many of the newest entries to show.")] = 50,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines, one per entry, for a log collector.")
    ] = False,
) -> None:
    """Show who did what, when and why. For an operation, show its plan too."""
    from pydantic import ValidationError

    from orchestration.operations.context import open_context
    from orchestration.operations.plans.plan import Plan
    from orchestration.operations.supervising.overview import audit
    from pipelines.errors import BadUsage, SwitchyardError
    from pipelines.model.entries import Opened, Proposed
    from pipelines.model.unread import Unread

    entries: deque[Entry | Unread] = deque(maxlen=limit)
    planned: Opened | Proposed | None = None
    # one by one, because the whole log may not fit into memory
    for entry in audit(open_context(load_settings(), say=say), name):
        entries.append(entry)
        if isinstance(entry, Opened | Proposed) and entry.id == name:
            planned = entry
    if name is not None and not entries:
        raise BadUsage(
            f"the registry has no entry about {name}",
            fix="name a release, app or operation as `switchyard log` shows it",
        )
    if as_json:
        for entry in entries:
            if isinstance(entry, Unread):
                print_json_line({"unread": asdict(entry)})
            else:
                print_json_line(entry.model_dump(mode="json", exclude_none=True))
        return
    if planned is not None:
        try:
            show_plan(Plan.from_journal(planned))
        except (SwitchyardError, ValidationError):
            # the audit trail outlives the version that wrote it
            out(f"another version of Switchyard made the plan of {name}; its stages can only be shown with --json")
    print_table(("at (UTC)", "who", "what", "why"), map(_row, entries))


def _row(entry: Entry | Unread) -> tuple[str, str, str, str]:
    from orchestration.commands.audit import in_words
    from pipelines.model.unread import Unread

    if isinstance(entry, Unread):
        return "", entry.writer or "", f"can't be read: {entry}", ""
    try:
        what = in_words(entry)
    except Exception:
        # one bad entry must not hide the others
        what = f"{type(entry).model_fields['kind'].default}; can only be shown with --json"
    return utc(entry.at_ms), entry.actor, what, entry.reason or ""


def operations(as_json: Json = False) -> None:
    """List the operations under way."""
    from orchestration.operations.context import open_context
    from orchestration.operations.journal import carrier_of
    from orchestration.operations.supervising.overview import open_operations

    context = open_context(load_settings(), say=say)
    found = open_operations(context)
    if as_json:
        print_json([{"id": o.id, "releases": o.opened.releases, "owner": o.opened.actor,
                     "deadline_ms": o.opened.deadline_ms} for o in found])  # fmt: skip
        return
    if not found:
        out("no operation is under way")
    for operation in found:
        releases, until = ", ".join(operation.opened.releases), utc(operation.opened.deadline_ms)
        out(
            f"{operation.id}  started by {visible(operation.opened.actor)}; no other operation on {releases} until {until} UTC"
        )
        at_it = carrier_of(context, operation)
        if at_it is not None:
            out(f"  {visible(at_it)} carries it out")
        else:
            out(
                f"  nobody carries it out: `switchyard resume {operation.id}` finishes it, `switchyard abandon {operation.id}` ends it"
            )


def resume(
    operation: Annotated[str, typer.Argument(metavar="ID", help="An id, as `switchyard operations` lists it.")],
    as_json: Json = False,
) -> None:
    """Resume an operation that its operator left unfinished. Acts at once, and does only what is left."""
    from orchestration.operations import journal
    from orchestration.operations.context import open_context
    from orchestration.operations.plans.kind import Kind
    from orchestration.operations.plans.plan import Plan

    context = open_context(load_settings(), say=say)
    known = journal.under_way(context.registry.state(), operation)
    run_plan(Plan.from_journal(known.opened), context, apply=True, as_json=as_json)
    if known.opened.name == Kind.DIFF and not as_json:
        from orchestration.operations.comparing.evidence import recorded

        show_comparison(recorded(context.registry.state(), operation))


def abandon(
    operation: Annotated[str, typer.Argument(metavar="ID", help="An id, as `switchyard operations` lists it.")],
    reason: Reason = None,
    as_json: Json = False,
) -> None:
    """Abandon an operation that its operator left unfinished. Consumers stay where they are."""
    from orchestration.operations.context import open_context
    from orchestration.operations.execute import abandon as end
    from orchestration.operations.supervising.overview import statuses

    context = open_context(load_settings(), say=say)
    end(context, operation, reason=reason)
    touched = context.registry.state().operations[operation].opened.releases
    notes = [f"{s.release.name}: {note}" for s in statuses(context) if s.release.name in touched for note in s.notes]
    if as_json:
        print_json({"id": operation, "abandoned": True, "notes": notes})
        return
    out(f"{operation} is abandoned")
    for note in notes:
        out(f"  {visible(note)}")


def dead_letters(
    name: Name,
    result: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the rows that were too large for this result.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many of the newest to show.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, one per dead letter.")] = False,
) -> None:
    """Show the newest dead letters of a release: records that are malformed, and rows that are too large to write."""
    from orchestration.operations.context import open_context
    from orchestration.operations.looking import dead_letters as looking

    found = looking.dead_letters(open_context(load_settings(), say=say), name, limit=limit, result=result)
    if as_json:
        for letter in found.letters:
            print_json_line({"release": found.release, **asdict(letter)})
        return
    if found.letters:
        columns = ("written at (UTC)", "record", "reason", "key", "value")
        print_table(columns, map(_letter_row, found.letters))
    out(_in_all(found, result))


def _in_all(found: DeadLetters, result: str | None) -> str:
    """How many dead letters there are, in words. The topic may have been made anew, or its records deleted."""
    shown, of_result = len(found.letters), f" of result {result}" if result is not None else ""
    written = (
        f"how many {found.release} has written is unknown, because its progress topic is gone"
        if found.total is None
        else f"{found.release} has written {counted(found.total, 'dead letter')} since generation {found.generation} started"
    )
    if shown:
        return f"shows the newest {shown:,}{of_result}; {written}" + (
            ", those of other kinds included" if result else ""
        )
    if result is not None or found.total == 0:
        return f"{found.release} has no dead letters{of_result}"
    return f"the topic of dead letters is empty, and may have been deleted meanwhile; {written}"


def _letter_row(letter: Letter) -> tuple[str, str, str, str, str]:
    record = letter.record or ""
    if letter.result is not None:
        record = f"row for {letter.result}" + (f" from {letter.record}" if letter.record else "")
    return (
        utc(letter.at_ms),
        record + (" (replay)" if letter.replay else ""),
        letter.reason,
        _with_length(letter.key, letter.key_bytes),
        _with_length(letter.value, letter.value_bytes),
    )


def _with_length(start: str | None, length: int) -> str:
    """The start of a key or a value; if that is not all of it, also how long it is."""
    from orchestration.operations.looking.dead_letters import SHOWN_BYTES

    if start is None:
        return f"({length:,} bytes, left out)" if length else "(null)"
    return start if length <= SHOWN_BYTES else f"{start}... ({length:,} bytes)"


def register_follower(
    app: Followed,
    group: Group,
    as_json: Json = False,
) -> None:
    """Register a follower that has no right to register itself.

    A release that a registered follower still needs can't be retired.
    """
    from orchestration.operations.context import open_context
    from orchestration.operations.lifecycle import unknown_app
    from pipelines.errors import BadUsage
    from pipelines.model.entries import FollowerRegistered
    from pipelines.model.names import is_group_name
    from pipelines.model.registry import RegistryState

    if not is_group_name(group):
        raise BadUsage(f"{group!r} can't be a follower's group", fix="use text without control characters")

    def decide(state: RegistryState) -> list[Entry]:
        if not state.of_app(app):
            raise unknown_app(state, app)
        return [] if group in state.followers.get(app, ()) else [FollowerRegistered(alias=app, group=group)]

    open_context(load_settings(), say=say).registry.step(decide)
    if as_json:
        print_json({"app": app, "group": group, "registered": True})
    else:
        out(f"{group} is registered as a follower of {app}")


def forget_follower(
    app: Followed,
    group: Group,
    as_json: Json = False,
) -> None:
    """Remove a registered follower that will not come back, so that releases can be retired."""
    from orchestration.operations.context import open_context
    from pipelines.errors import BadUsage
    from pipelines.model.entries import FollowerRemoved

    context = open_context(load_settings(), say=say)
    known = context.registry.state().followers.get(app, ())
    if group not in known:
        raise BadUsage(f"{app} has no follower {group}", fix=f"its followers are: {', '.join(known) or 'none'}")
    context.registry.step(lambda _: [FollowerRemoved(alias=app, group=group)])
    if as_json:
        print_json({"app": app, "group": group, "registered": False})
    else:
        out(f"{group} is no longer a follower of {app}")
