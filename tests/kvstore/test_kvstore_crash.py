"""A disk store survives the death of its writers at any instant, and many writers at once."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from epic_rag.kvstore.disk import DiskStore

ROOT = Path(__file__).resolve().parents[2]
BUDGET_BYTES = 400_000

# Each blob tells its name and size, and is one repeated byte, so that a torn or mixed one shows.
WRITER = """
import random, sys
from epic_rag.kvstore.disk import DiskStore
root, seed, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dice = random.Random(seed)
with DiskStore(root, BUDGET, "lfu") as store:
    print("open", flush=True)
    for turn in range(turns):
        name = f"k{dice.randrange(40)}"
        view = store.get(name)
        assert view is None or whole(name, bytes(view)), name
        if dice.random() < 0.2:
            store.delete(name)
        else:
            store.put(name, blob(name, dice.randrange(20_000), dice.randrange(256)))
"""
BLOBS = """
def blob(name, size, filling):
    return f"{name} {size} ".encode() + bytes([filling]) * size

def whole(name, data):
    stored, size, rest = data.split(b" ", 2)
    return stored == name.encode() and int(size) == len(rest) and len(set(rest)) <= 1
"""
whole = {}
exec(BLOBS, whole)


def writer(root: Path, seed: int, turns: int) -> subprocess.Popen[str]:
    code = BLOBS + WRITER.replace("BUDGET", str(BUDGET_BYTES))
    command = [sys.executable, "-c", code, str(root), str(seed), str(turns)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check(root: Path) -> tuple[int, int]:
    """Open the store and check every blob and the books; returns how many blobs there are, and their bytes."""
    files = {path.stem: path.stat().st_size for path in (root / "blobs").rglob("*.safetensors")}
    with DiskStore(root, BUDGET_BYTES, "lfu") as store:
        with store._manifest.read() as rows:
            assert rows.unsettled() == []
        assert sorted(store.names()) == sorted(name for name in files if store.contains([name])[0])
        for name in store.names():
            view = store.get(name)
            assert view is not None
            assert whole["whole"](name, bytes(view)), name
            assert store.size_bytes(name) == len(view) == files[name]
        stats = store.stats()
        assert (stats.entries, stats.bytes) == (len(files), sum(files.values())) or stats.entries < len(files)
        assert stats.bytes == sum(store.size_bytes(name) or 0 for name in store.names()) <= BUDGET_BYTES
    return stats.entries, stats.bytes


def test_killed_writers_leave_a_store_that_opens(tmp_path: Path) -> None:
    dice = random.Random(7)
    left_behind = torn_temps = 0
    for turn in range(40):
        process = writer(tmp_path, turn, 10**9)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n", process.communicate()[1]
        time.sleep(dice.uniform(0.0, 0.06))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.communicate()
        torn_temps += len(list((tmp_path / "tmp").iterdir())) - torn_temps
        entries, size_bytes = check(tmp_path)
        left_behind = max(left_behind, entries)
    print(f"40 kills: {torn_temps} temporary files left, up to {left_behind} blobs, {size_bytes} bytes at the end")
    assert left_behind > 10


def test_eight_processes_share_a_store(tmp_path: Path) -> None:
    processes = [writer(tmp_path, seed, 40) for seed in range(8)]
    outcomes = [(*process.communicate(), process.returncode) for process in processes]
    assert [errors for _, errors, code in outcomes if code] == []
    entries, _ = check(tmp_path)
    assert entries > 0
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_process_may_die_between_any_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of a put fails once, with nothing tidied up behind it, as if the power had gone."""

    class PowerFailure(BaseException):
        pass

    def fail(*_: object, **__: object) -> None:
        raise PowerFailure

    steps = ["_take_out", "_publish", "_folder.write_temp", "_folder.publish", "_folder.sync"]
    for turn, step in enumerate(steps):
        store = DiskStore(tmp_path, 100)
        for i in range(3):
            store.put(f"k{i}", bytes(30))
        target = store._folder if "." in step else store
        with monkeypatch.context() as patch:
            patch.setattr(store, "_cancel", lambda name: None)
            patch.setattr(target, step.split(".")[-1], fail)
            with pytest.raises(PowerFailure):
                store.put("new", bytes([turn]) * 50)
        store._manifest.close()
        with DiskStore(tmp_path, 100) as store:
            files = {path.stem: path.stat().st_size for path in (tmp_path / "blobs").rglob("*.safetensors")}
            assert sorted(files) == list(store.names()), step
            assert store.stats().bytes == sum(files.values()) <= 100, step
            assert ("new" in files) == (step == "_folder.sync"), step
            store.delete("new")
