"""The unit files in docs/systemd: what systemd would refuse, and commands that aren't there."""

from __future__ import annotations

import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from orchestration.cli import build

ROOT = Path(__file__).resolve().parents[1]
UNITS = sorted((ROOT / "docs" / "systemd").glob("*.service"))


def read(path: Path) -> ConfigParser:
    unit = ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    # systemd's names have capitals
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(path.read_text())
    return unit


def test_there_is_one_for_the_broker_and_one_for_the_supervisor() -> None:
    assert [path.name for path in UNITS] == ["switchyard-broker.service", "switchyard-supervise.service"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_each_runs_commands_that_there_are(path: Path) -> None:
    service = read(path)["Service"]
    commands = get_command(build()).commands  # type: ignore[attr-defined]
    run = [service[name].split() for name in ("ExecStart", "ExecStop") if name in service]
    assert run
    for program, command, *options in run:
        assert program.endswith("/.venv/bin/switchyard")
        with typer.Context(commands[command]) as context:
            commands[command].parse_args(context, options)


def test_drivers_outlive_the_supervisor_and_wrong_settings_are_not_tried_again() -> None:
    service = read(ROOT / "docs/systemd/switchyard-supervise.service")["Service"]
    assert (service["KillMode"], service["RestartPreventExitStatus"], service["Type"]) == ("process", "2", "simple")
    # a driver that runs out of memory must not take its supervisor along
    assert service["OOMPolicy"] == "continue"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_takes_it(path: Path, tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        # without the tool: sections and names as systemd has them
        known = {"Unit": {"Description", "After", "Wants"}, "Install": {"WantedBy"}}
        found = read(path)
        assert set(found.sections()) == {"Unit", "Service", "Install"}
        assert all(set(found[section]) <= names for section, names in known.items())
        return
    # the programs of the units are not on this host
    text = (
        path.read_text().replace("/srv/switchyard/.venv/bin/switchyard", "/bin/true").replace("User=switchyard\n", "")
    )
    unit = tmp_path / path.name
    unit.write_text(text)
    done = subprocess.run([tool, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
