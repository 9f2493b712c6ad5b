"""The files that a retirement deletes."""

from __future__ import annotations

from pathlib import Path

from orchestration.operations.comparing.evidence import evidence_home
from orchestration.operations.plans.stages.releases import DeleteFiles
from pipelines.engine.code import code_place
from pipelines.engine.table_file import table_path
from pipelines.objects import holds
from pipelines.paths import below
from pipelines.settings import Settings


def folders_of(settings: Settings, stage: DeleteFiles) -> dict[Path, tuple[Path, tuple[str, str]]]:
    """Its folders: path -> the store or the state folder, and the parts of the path under that. Raises SwitchyardError if a
    link leads out of there.
    """
    stored = [("checkpoints", stage.release), *map(evidence_home, stage.evidence)]
    places = [*((settings.store_dir, each) for each in stored), (settings.state_dir, ("run", stage.release))]
    return {below(root, *parts): (root, parts) for root, parts in places}


def files_of(settings: Settings, stage: DeleteFiles) -> dict[Path, str]:
    """Its frozen code and static tables: path -> digest. Raises as `folders_of` does."""
    code = {} if stage.code_digest is None else {code_place(settings, stage.code_digest): stage.code_digest}
    return code | {table_path(settings, digest): digest for digest in stage.tables}


def is_left(settings: Settings, stage: DeleteFiles) -> bool:
    """Whether any of it is there, on this host or in the bucket of the store."""
    stored = [path for path, (root, _) in folders_of(settings, stage).items() if root == settings.store_dir]
    here = any(path.exists() for path in (*folders_of(settings, stage), *files_of(settings, stage)))
    return here or any(holds(settings, path) for path in (*stored, *files_of(settings, stage)))
