"""Shared by the tests of the KV store."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from epic_rag.kvstore.disk import DiskStore

pytest.register_assert_rewrite("epic_rag.kvstore.conformance")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def books_balance() -> Callable[[DiskStore], bool]:
    """Whether names and bytes are exactly those of the files on disk, and nothing is left unsettled."""

    def balance(store: DiskStore) -> bool:
        files = {path.stem: path.stat().st_size for path in (store.path / "blobs").rglob("*.*") if path.is_file()}
        with store._manifest.read() as rows:
            settled = rows.unsettled() == []
        return settled and sorted(files) == list(store.names()) and store.stats().bytes == sum(files.values())

    return balance


@pytest.fixture
def in_namespace(tmp_path: Path) -> Callable[[str, str], subprocess.CompletedProcess[str]]:
    """Runs Python code behind a mount that nobody else sees; skips where mounting is not allowed."""
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "none", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")

    def run(mount: str, code: str) -> subprocess.CompletedProcess[str]:
        command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, code]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    return run
