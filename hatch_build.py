"""Build hook: the folders at the root of the repository install inside epic_rag.

In a checkout `epic_rag/kvstore` and its two siblings are links to the folders at the root. A clone made with
`core.symlinks=false` holds three small text files instead, and packing those gives a wheel that cannot be imported.
So wheel and sdist never pack the links (pyproject.toml excludes them); this hook maps each folder to its place. Only
an editable install needs the links themselves.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GROUND_FOLDERS = ("kernels", "kvstore", "retrievers")

LINKS = " ".join(f"epic_rag/{name}" for name in GROUND_FOLDERS)
LINKS_MEND = f"git config core.symlinks true && rm -f {LINKS} && git checkout -- {LINKS}"


class GroundFolders(BuildHookInterface[BuilderConfig]):
    """Map `kernels`, `kvstore` and `retrievers` to `epic_rag/...` in every wheel and sdist."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folders to what is packed, or end the build with the mend.

        Args:
            version: "editable" or "standard", as hatchling calls the kinds of one target.
            build_data: hatchling's build data; `force_include` maps a source path to its place in the archive.

        Raises:
            SystemExit: a folder is missing, or a link that an editable install needs; printed without a traceback.
        """
        if version == "editable":
            self._check_links()
            return
        for name in GROUND_FOLDERS:
            build_data["force_include"][str(self._source(name))] = f"epic_rag/{name}"

    def _source(self, name: str) -> Path:
        """Return the folder that holds `name`: at the root in a checkout, inside epic_rag in an unpacked sdist."""
        for folder in (Path(self.root, name), Path(self.root, "epic_rag", name)):
            if folder.is_dir() and any(folder.glob("*.py")):
                return folder
        raise SystemExit(
            f"epic-rag cannot be built: no Python file in {name}/ nor in epic_rag/{name}/ under {self.root}. "
            "Mend: build from a whole checkout or a whole sdist."
        )

    def _check_links(self) -> None:
        """End an editable build where a folder cannot be reached through epic_rag."""
        broken = [name for name in GROUND_FOLDERS if not Path(self.root, "epic_rag", name).is_dir()]
        if broken:
            raise SystemExit(
                f"epic-rag cannot be installed editable: {', '.join(f'epic_rag/{name}' for name in broken)} should "
                "link to the folder of that name at the root of the repository. A clone made with "
                f"core.symlinks=false has text files there. Mend: {LINKS_MEND} "
                "(on Windows turn Developer Mode on first), or install without -e."
            )
