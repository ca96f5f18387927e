"""What every search over a `PassageIndex` can do, and what its retrievers need of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from epic_rag.retrievers.index import PassageIndex
    from epic_rag.retrievers.passage import Passage
    from epic_rag.retrievers.where import Where


Progress = Callable[[int, int], None]
"""Called with the passages that are done and those there are."""


class Search(Protocol):
    """Finds the passages of one index that answer a question."""

    @property
    def index(self) -> PassageIndex:
        """The passages that are searched."""

    def search(self, query: str, k: int, where: Where | None = None) -> list[tuple[Passage, float]]:
        """The best passages for a question.

        Args:
            query: Text in any script.
            k: How many at most.
            where: Only passages whose fields match are ranked; None ranks all.

        Returns:
            (passage, score) by falling score.

        Raises:
            ValueError: `where` names a field that there is not.
        """

    def refresh(self, progress: Progress | None = None) -> None:
        """Prepare now what the next search would have to; costs nothing when it is ready.

        Args:
            progress: Told how far it is, where it takes long.
        """
