"""What product code imports is declared in pyproject.toml, and the pins of requirements/ lie in its ranges."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PIN_FILES = ("constraints.txt", "torch-cpu.txt", "transformers-newest.txt", "transformers-oldest.txt")


def pins(file: str) -> dict[str, Version]:
    """The exact versions that `file` names, by canonical package name."""
    lines = (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(r.name): Version(str(r.specifier).removeprefix("==")) for r in wanted}


def of_the_package() -> list[Requirement]:
    """What the package and its extras require."""
    extras = PROJECT["project"]["optional-dependencies"].values()
    return [Requirement(line) for lines in (PROJECT["project"]["dependencies"], *extras) for line in lines]


def of_the_checks() -> list[Requirement]:
    """What the dependency groups require."""
    groups = PROJECT["dependency-groups"].values()
    return [Requirement(line) for lines in groups for line in lines if isinstance(line, str)]


@pytest.mark.parametrize("file", PIN_FILES)
def test_pins_lie_in_the_declared_ranges(file: str) -> None:
    found = pins(file)
    assert found
    for wanted in (*of_the_package(), *of_the_checks()):
        version = found.get(canonicalize_name(wanted.name))
        assert version is None or version in wanted.specifier, f"{file}: {version} is outside {wanted}"


def test_the_oldest_transformers_is_the_lower_bound() -> None:
    (wanted,) = [r for r in of_the_package() if r.name == "transformers"]
    lower = [Version(s.version) for s in wanted.specifier if s.operator == ">="]
    assert lower == [pins("transformers-oldest.txt")["transformers"]]


def imported_libraries() -> set[str]:
    """Top-level names of every library that product code imports anywhere."""
    found: set[str] = set()
    for folder in ("epic_rag", "kernels", "kvstore", "retrievers"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - {"epic_rag"}


def test_every_imported_library_is_declared() -> None:
    # Who runs the conformance suite that ships with the product has pytest.
    names = {canonicalize_name(r.name) for r in of_the_package()} | {"pytest"}
    installed = packages_distributions()
    missing = [
        library
        for library in sorted(imported_libraries())
        if not names & {canonicalize_name(name) for name in installed.get(library, [library])}
    ]
    assert missing == [], "add them to the dependencies, or to an extra, in pyproject.toml"
