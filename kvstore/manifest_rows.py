"""The manifest's tables, and what a transaction may do with its rows."""

import math
import sqlite3
from collections.abc import Mapping, Sequence

from epic_rag.kvstore.blobstore import RECORD_PREFIX, BlobNote, Usage
from epic_rag.kvstore.replacement import Use, make_replacement

SCHEMA_VERSION = 1

LIVE, WRITING, CONDEMNED = range(3)
"""States of an entry. A live one is a file; one being written or condemned may or may not be: whoever opens the store
after a crash looks at the file and settles it."""

_SCHEMA = """
CREATE TABLE entry (
    name TEXT PRIMARY KEY,
    size_bytes INTEGER NOT NULL,
    profile TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    cost_seconds REAL NOT NULL,
    pinned INTEGER NOT NULL,
    state INTEGER NOT NULL,
    uses INTEGER NOT NULL DEFAULT 0,
    last_use INTEGER NOT NULL DEFAULT 0,
    rank REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX entry_next_victim ON entry (state, pinned, rank, last_use);
CREATE TABLE usage (profile TEXT PRIMARY KEY, entries INTEGER, bytes INTEGER, tokens INTEGER) WITHOUT ROWID;
CREATE TABLE setting (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO setting VALUES ('last_use', 0), ('floor', 0.0), ('replacement', '');
CREATE TRIGGER usage_insert AFTER INSERT ON entry WHEN new.state = 0 BEGIN
    INSERT INTO usage VALUES (new.profile, 1, new.size_bytes, new.tokens) ON CONFLICT (profile) DO UPDATE SET
        entries = entries + 1, bytes = bytes + new.size_bytes, tokens = tokens + new.tokens;
END;
CREATE TRIGGER usage_delete AFTER DELETE ON entry WHEN old.state = 0 BEGIN
    UPDATE usage SET entries = entries - 1, bytes = bytes - old.size_bytes, tokens = tokens - old.tokens
        WHERE profile = old.profile;
END;
CREATE TRIGGER usage_update_old AFTER UPDATE OF size_bytes, profile, tokens, state ON entry WHEN old.state = 0 BEGIN
    UPDATE usage SET entries = entries - 1, bytes = bytes - old.size_bytes, tokens = tokens - old.tokens
        WHERE profile = old.profile;
END;
CREATE TRIGGER usage_update_new AFTER UPDATE OF size_bytes, profile, tokens, state ON entry WHEN new.state = 0 BEGIN
    INSERT INTO usage VALUES (new.profile, 1, new.size_bytes, new.tokens) ON CONFLICT (profile) DO UPDATE SET
        entries = entries + 1, bytes = bytes + new.size_bytes, tokens = tokens + new.tokens;
END;
"""

_UPSERT = """
INSERT INTO entry (name, size_bytes, profile, tokens, cost_seconds, pinned, state) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET size_bytes = excluded.size_bytes, profile = excluded.profile,
    tokens = excluded.tokens, cost_seconds = excluded.cost_seconds, state = excluded.state
"""


class Rows:
    """The rows of the manifest; lives as long as the transaction or read that made it."""

    def __init__(self, db: sqlite3.Connection, replacement: str) -> None:
        self._db = db
        self._replacement = replacement
        self._policy = make_replacement(replacement)

    def create(self) -> None:
        """Make the tables; the version is set in the same transaction, so a crash leaves all of it or nothing."""
        for statement in _statements(_SCHEMA):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def reserve(self, name: str, size_bytes: int, note: BlobNote) -> None:
        """Count a blob's bytes before they are written."""
        self._upsert(name, size_bytes, note, WRITING)

    def settle(self, name: str, size_bytes: int, note: BlobNote) -> None:
        """Record that the file is there, and count its use."""
        self._upsert(name, size_bytes, note, LIVE)
        self.use(name, 1)

    def use(self, name: str, times: int) -> bool:
        """Count uses of an entry and rank it anew; returns whether it is known."""
        query = "SELECT uses, size_bytes, cost_seconds FROM entry WHERE name = ?"
        row = self._db.execute(query, (name,)).fetchone()
        if row is None:
            return False
        last_use = int(self._setting("last_use")) + 1
        use = Use(last_use, row[0] + times, row[1], row[2], float(self._setting("floor")))
        self._set("last_use", last_use)
        self._db.execute(
            "UPDATE entry SET uses = ?, last_use = ?, rank = ? WHERE name = ?",
            (use.uses, last_use, self._policy.rank(use), name),
        )
        return True

    def make_room(self, budget_bytes: int | None) -> list[str]:
        """Condemn the entries of lowest rank until the rest fits the budget, as far as there are any."""
        victims: list[str] = []
        while not self._fits(budget_bytes):
            query = "SELECT name, rank FROM entry WHERE state = ? AND pinned = 0 ORDER BY rank, last_use LIMIT 1"
            row = self._db.execute(query, (LIVE,)).fetchone()
            if row is None:
                break
            victims.append(row[0])
            self.condemn(row[0])
            self._set("floor", max(float(self._setting("floor")), row[1]))
        return victims

    def by_rank(self) -> list[str]:
        """Return the names that may give way, in the order of `make_room`."""
        query = "SELECT name FROM entry WHERE state = ? AND pinned = 0 ORDER BY rank, last_use"
        return [row[0] for row in self._db.execute(query, (LIVE,))]

    def room(self, budget_bytes: int | None) -> float:
        """Return how large a blob may be at most: the budget without the pinned."""
        query = "SELECT TOTAL(size_bytes) FROM entry WHERE state = ? AND pinned = 1"
        pinned_bytes = self._db.execute(query, (LIVE,)).fetchone()[0]
        return math.inf if budget_bytes is None else float(budget_bytes - pinned_bytes)

    def condemn(self, name: str) -> None:
        """Record that a file is about to go."""
        self._db.execute("UPDATE entry SET state = ? WHERE name = ?", (CONDEMNED, name))

    def remove(self, name: str) -> None:
        """Forget an entry."""
        self._db.execute("DELETE FROM entry WHERE name = ?", (name,))

    def state(self, name: str) -> int | None:
        """Return an entry's state; None when it is unknown."""
        row = self._db.execute("SELECT state FROM entry WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    def unsettled(self) -> list[tuple[str, int]]:
        """Return name and state of every entry that is being written or condemned."""
        return list(self._db.execute("SELECT name, state FROM entry WHERE state > ?", (LIVE,)))

    def sizes(self) -> dict[str, int]:
        """Return the size of every live entry."""
        return dict(self._db.execute("SELECT name, size_bytes FROM entry WHERE state = ?", (LIVE,)))

    def names(self, prefix: str) -> Sequence[str]:
        """Return the live names that start with `prefix`, sorted."""
        # "{" sorts behind every character of a name.
        query = "SELECT name FROM entry WHERE name >= ? AND name < ? AND state = ? ORDER BY name"
        return [row[0] for row in self._db.execute(query, (prefix, prefix + "{", LIVE))]

    def usage(self) -> Mapping[str, Usage]:
        """Return what each profile takes."""
        query = "SELECT profile, entries, bytes, tokens FROM usage WHERE entries > 0"
        return {profile: Usage(*numbers) for profile, *numbers in self._db.execute(query)}

    def ranked_otherwise(self) -> bool:
        """Return whether the ranks were made by another replacement policy than this one."""
        return self._setting("replacement") != self._replacement

    def rank_all(self) -> None:
        """Rank every entry by this policy."""
        query = "SELECT name, last_use, uses, size_bytes, cost_seconds, 0.0 FROM entry"
        uses = [(name, Use(*numbers)) for name, *numbers in self._db.execute(query)]
        self._db.executemany(
            "UPDATE entry SET rank = ? WHERE name = ?", [(self._policy.rank(u), name) for name, u in uses]
        )
        self._set("floor", 0.0)
        self._set("replacement", self._replacement)

    def _fits(self, budget_bytes: int | None) -> bool:
        if budget_bytes is None:
            return True
        query = "SELECT (SELECT TOTAL(bytes) FROM usage) + (SELECT TOTAL(size_bytes) FROM entry WHERE state = ?)"
        return bool(self._db.execute(query, (WRITING,)).fetchone()[0] <= budget_bytes)

    def _upsert(self, name: str, size_bytes: int, note: BlobNote, state: int) -> None:
        pinned = name.startswith(RECORD_PREFIX)
        self._db.execute(_UPSERT, (name, size_bytes, note.profile, note.tokens, note.cost_seconds, pinned, state))

    def _setting(self, name: str) -> str | int | float:
        value: str | int | float = self._db.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()[0]
        return value

    def _set(self, name: str, value: str | float) -> None:
        self._db.execute("UPDATE setting SET value = ? WHERE name = ?", (value, name))


def _statements(script: str) -> list[str]:
    """Split a script; `executescript` would end the transaction it runs in."""
    statements, sofar = [], ""
    for line in script.splitlines():
        sofar += line + "\n"
        if sqlite3.complete_statement(sofar) and sofar.strip():
            statements.append(sofar)
            sofar = ""
    return statements
