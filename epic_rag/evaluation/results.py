"""How results are named and kept: a file of records for each task and its settings, and a summary beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from epic_rag.evaluation.summary import Summary
from epic_rag.model import LanguageModel

About = Mapping[str, str | int | None]
"""Settings of a task that its name does not tell, None where they are not given."""


def stem_of(task_name: str, model: LanguageModel, seed: int, about: About) -> str:
    """Name of a task's files, without the end: what another name means is never measured into the same file."""
    told = [f"{name}-{value}" for name, value in about.items() if value is not None]
    parts = [task_name, Path(model.name).name, _dtype(model), f"seed{seed}", *told]
    return "_".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)


def results(model: LanguageModel, seed: int, summaries: Mapping[str, Summary]) -> dict[str, object]:
    """What `epic-rag eval --json` prints."""
    tasks = {name: summary.to_dict() for name, summary in summaries.items()}
    versions = {name: version(name) for name in ("epic-rag", "torch", "transformers")}
    return {"model": model.name, "dtype": _dtype(model), "seed": seed, "versions": versions, "tasks": tasks}


def write_results(path: Path, found: Mapping[str, object]) -> None:
    """Write a summary; a kill leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(path)


def _dtype(model: LanguageModel) -> str:
    return str(model.dtype).removeprefix("torch.")
