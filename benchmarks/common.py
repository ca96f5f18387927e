"""What every benchmark shares: where it ran, and how its results are kept."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def provenance(module: str) -> dict[str, object]:
    """Command, commit, machine and versions, so that a figure can be made again."""
    return {
        "command": " ".join(["python -m", module, *sys.argv[1:]]),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "load_average": os.getloadavg()[0],
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        "versions": {name: version(name) for name in ("torch", "transformers", "safetensors", "numpy")},
    }


def save(name: str, result: dict[str, object]) -> Path:
    """Write `benchmarks/results/<name>.json`."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {path.relative_to(ROOT)}")
    return path


def spread(seconds: list[float]) -> dict[str, float]:
    """Median, smallest and largest of repeated measurements."""
    return {"median": median(seconds), "min": min(seconds), "max": max(seconds)}


def data_folder(name: str) -> Path:
    """A folder of the evaluation data, which is not part of the project.

    Looked for under `EPIC_RAG_TEST_DATA`, else in `../shared/data` beside the project.
    """
    base = Path(os.environ.get("EPIC_RAG_TEST_DATA") or ROOT.parent / "shared" / "data")
    folder = base / name
    if not folder.is_dir():
        raise SystemExit(f"no evaluation data at {folder}: set EPIC_RAG_TEST_DATA to the folder that holds '{name}'")
    return folder


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
