"""What a JVM says on standard error reaches a terminal, without the one warning that nobody can act on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from pipelines.engine.jvm_process import _INCUBATOR, without_warning


def says(text: str, errors: int) -> None:
    subprocess.run(["sh", "-c", 'printf "%b" "$0" >&2', text], stderr=errors, check=True)


def await_end(before: set[threading.Thread]) -> None:
    """Waits until what has been said is written. `before`: the threads of other tests; their sessions may have one, too."""
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def test_only_the_warning_of_the_incubator_module_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    warning, before = _INCUBATOR.decode(), set(threading.enumerate())
    with without_warning() as errors:
        says(f"before\\n{warning}\\n{warning}, another\\nwithout an end of line", errors)
    # capfd loses what is written while it reads
    await_end(before)
    assert capfd.readouterr().err == f"before\n{warning}, another\nwithout an end of line"


def test_what_a_jvm_says_about_why_it_does_not_start_comes_before_the_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="it did not start"), without_warning() as errors:
        says("no memory\\n", errors)
        raise OSError("it did not start")
    assert capfd.readouterr().err == "no memory\n"


def test_a_jvm_goes_on_though_nobody_reads_what_it_says() -> None:
    read, write = os.pipe()
    kept, before = os.dup(2), set(threading.enumerate())
    os.close(read)
    try:
        os.dup2(write, 2)
        with without_warning() as errors:
            # more than a pipe holds
            says(("x" * 999 + "\\n") * 100, errors)
            says(("x" * 999 + "\\n") * 100, errors)
        await_end(before)
    finally:
        os.dup2(kept, 2)
        for each in (kept, write):
            os.close(each)


def test_the_last_lines_of_a_jvm_that_has_ended_are_shown() -> None:
    """Expected: all of them, though this process ends as soon as the JVM has."""
    code = """
import subprocess
import sys
from pipelines.engine import jvm_process
with jvm_process.without_warning() as errors:
    jvm = subprocess.Popen(["sh", "-c", "seq 9000 >&2"], stderr=errors)
jvm_process._jvm = lambda: jvm
jvm.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "9000"
