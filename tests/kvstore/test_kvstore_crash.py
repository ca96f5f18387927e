"""A disk store survives the death of its writers at any instant, and many writers at once."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.testing import content

ROOT = Path(__file__).resolve().parents[2]
BUDGET_BYTES = 400_000
KILLS = int(os.environ.get("EPIC_RAG_TEST_KILLS", "40"))
"""`.ci/run` kills 200 times."""

# Each blob tells its name and size, and is one repeated byte, so that a torn or mixed one shows.
BLOBS = """
def blob(name, size, filling):
    return f"{name} {size} ".encode() + bytes([filling]) * size

def is_whole(name, data):
    stored, size, rest = data.split(b" ", 2)
    return stored == name.encode() and int(size) == len(rest) and len(set(rest)) <= 1
"""
WRITER = """
import random, sys
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.testing import in_threads
root, seed, threads, turns, budget = sys.argv[1], *map(int, sys.argv[2:])
store = DiskStore(root, budget or None, "lfu")

def work(index):
    dice = random.Random(f"{seed} {index}")
    for turn in range(turns):
        name = f"k{dice.randrange(40)}"
        view = store.get(name)
        assert view is None or is_whole(name, bytes(view)), name
        if dice.random() < 0.2:
            store.delete(name)
            print(name, flush=True)
        else:
            size, filling = dice.randrange(20_000), dice.randrange(256)
            store.put(name, blob(name, size, filling))
            print(name, size, filling, flush=True)

print("open", flush=True)
in_threads(threads, work)
store.close()
"""
made: dict[str, Callable[..., bytes]] = {}
exec(BLOBS, made)


def writer(root: Path, seed: int, threads: int, turns: int, budget: int = BUDGET_BYTES) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BLOBS + WRITER, *map(str, (root, seed, threads, turns, budget))]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check(root: Path) -> int:
    """Open the store, and check every blob and that the books are exactly those of the files; returns the entries."""
    with DiskStore(root, BUDGET_BYTES, "lfu") as store:
        files = {path.stem: path.stat().st_size for path in (root / "blobs").rglob("*.safetensors")}
        for name in files:
            assert made["is_whole"](name, content(store.get(name)) or b""), name
        assert list(store.names()) == sorted(files)
        assert store.stats().bytes == sum(files.values()) <= BUDGET_BYTES
        with store._manifest.read() as rows:
            assert rows.unsettled() == []
    return len(files)


def unsettled(root: Path) -> int:
    """Entries that were being written or removed when their process died."""
    with closing(sqlite3.connect(root / "manifest.sqlite3")) as db:
        return int(db.execute("SELECT COUNT(*) FROM entry WHERE state > 0").fetchone()[0])


def test_killed_writers_leave_a_store_that_opens(tmp_path: Path) -> None:
    dice = random.Random(7)
    turn = interrupted = entries = 0
    while turn < KILLS or (not interrupted and turn < 10 * KILLS):  # how often a kill hits a write is chance
        turn += 1
        process = writer(tmp_path, turn, 1, 10**9)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n", process.communicate()[1]
        time.sleep(dice.uniform(0.0, 0.12))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.communicate()
        interrupted += unsettled(tmp_path) > 0
        entries = max(entries, check(tmp_path))
    temps = len(list((tmp_path / "tmp").iterdir()))
    print(f"{turn} kills: {interrupted} amid a write or removal, {temps} temporary files left, up to {entries} blobs")
    assert interrupted > 0
    assert entries > 0


def test_what_was_put_before_a_kill_is_there_after_it(tmp_path: Path) -> None:
    """Without a budget nothing gives way: at most the one blob in flight may differ from what was acknowledged."""
    dice = random.Random(8)
    state: dict[str, bytes] = {}
    in_flight = acknowledged = 0
    for turn in range(KILLS // 4):
        process = writer(tmp_path, turn, 1, 10**9, budget=0)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n", process.communicate()[1]
        said = "".join(process.stdout.readline() for _ in range(dice.randrange(12)))
        time.sleep(dice.uniform(0.0, 0.01))
        process.send_signal(signal.SIGKILL)
        said += process.communicate()[0]
        for line in said[: said.rfind("\n") + 1].splitlines():
            name, *numbers = line.split()
            acknowledged += 1
            state.pop(name, None)
            if numbers:
                state[name] = made["blob"](name, *map(int, numbers))
        with DiskStore(tmp_path) as store:
            found = {name: content(store.get(name)) or b"" for name in store.names()}
        differ = {name for name in state.keys() | found.keys() if state.get(name) != found.get(name)}
        assert len(differ) <= 1
        in_flight += len(differ)
        state = found
    print(f"{KILLS // 4} kills after {acknowledged} acknowledged writes: none lost, {in_flight} in flight were done")
    assert acknowledged > KILLS


def test_eight_processes_of_eight_threads_share_a_store(tmp_path: Path) -> None:
    processes = [writer(tmp_path, seed, 8, 6) for seed in range(8)]
    outcomes = [(*process.communicate(), process.returncode) for process in processes]
    assert [errors for _, errors, code in outcomes if code] == []
    assert check(tmp_path) > 0
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
