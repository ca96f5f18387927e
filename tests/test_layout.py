"""The house rules that a machine can check: which way imports run, what stays out of product code, what is lazy."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GROUND = ("kernels", "kvstore", "retrievers")
MAX_LINES = 300


def python_files(folder: Path) -> Iterator[Path]:
    """Real Python files below `folder`; links are not followed, so each ground file is met once."""
    for child in sorted(folder.iterdir()):
        if child.is_symlink() or child.name.startswith((".", "__pycache__")):
            continue
        if child.is_dir():
            yield from python_files(child)
        elif child.suffix == ".py":
            yield child


def product_files() -> dict[str, Path]:
    """Every product file under the dotted name it is imported by."""
    files: dict[str, Path] = {}
    for folder in ("epic_rag", *GROUND):
        for path in python_files(ROOT / folder) if (ROOT / folder).is_dir() else ():
            relative = path.relative_to(ROOT).with_suffix("")
            parts = [part for part in relative.parts if part != "__init__"]
            files[".".join(["epic_rag", *parts] if folder in GROUND else parts)] = path
    return files


FILES = product_files()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def package_of(folder: str) -> str:
    return folder if folder == "epic_rag" else f"epic_rag.{folder}"


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import; `from a import b` counts as a.b where that is a product module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            for alias in node.names:
                full = f"{origin}.{alias.name}"
                yield node.lineno, full if full in FILES else origin


def every_import() -> Iterator[tuple[str, int, str]]:
    """(importing module, line, imported name) of every import, also of those inside functions and for types only."""
    for name, tree in TREES.items():
        yield from ((name, line, module) for line, module in imported(ast.walk(tree)))


def at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """Statements that run at import: the body, and what stands in a `try` or an `if` but for TYPE_CHECKING."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.Try):
            waiting += [*node.body, *node.orelse, *node.finalbody, *(s for h in node.handlers for s in h.body)]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            waiting += [*node.body, *node.orelse]


def test_every_folder_holds_product_files() -> None:
    folders = ("epic_rag", *GROUND)
    assert [f for f in folders if not any(within(name, package_of(f)) for name in FILES)] == []


def test_imports_name_the_whole_path() -> None:
    short = [i for i in every_import() if i[2].startswith(".") or i[2].split(".")[0] in GROUND]
    assert short == [], "import ground folders and siblings as epic_rag.<folder>.<file>"


@pytest.mark.parametrize("folder", GROUND)
def test_a_ground_folder_imports_nothing_of_the_product_but_itself(folder: str) -> None:
    home = package_of(folder)
    foreign = [
        (name, line, module)
        for name, line, module in every_import()
        if within(name, home) and within(module, "epic_rag") and not within(module, home)
    ]
    assert foreign == [], "imports run down: epic_rag -> kernels, kvstore, retrievers"


def test_only_the_model_imports_transformers() -> None:
    foreign = [i for i in every_import() if within(i[2], "transformers") and not within(i[0], "epic_rag.model")]
    assert foreign == []


def test_no_circle_of_imports() -> None:
    graph = {name: {m for _, m in imported(at_import(tree)) if m in FILES} - {name} for name, tree in TREES.items()}
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert set(order) == set(FILES)


def test_a_file_is_short_enough_to_hold_one_idea() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in FILES.items()}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_assert_never_guards_product_code() -> None:
    asserts = [(name, n.lineno) for name, tree in TREES.items() for n in ast.walk(tree) if isinstance(n, ast.Assert)]
    # The conformance suites are tests that ship with the product.
    assert [found for found in asserts if not found[0].startswith("epic_rag.kvstore.conformance")] == []


def reads_environment(node: ast.AST) -> bool:
    reads = {"environ", "environb", "getenv", "getenvb"}
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(alias.name in reads for alias in node.names)
    return isinstance(node, ast.Attribute) and node.attr in reads and ast.unparse(node.value) == "os"


def test_only_config_reads_the_environment() -> None:
    found = [(name, node.lineno) for name, tree in TREES.items() for node in ast.walk(tree) if reads_environment(node)]
    assert [read for read in found if read[0] != "epic_rag.config"] == []


def test_no_init_file_hides_another_package() -> None:
    assert not (ROOT / "kernels/__init__.py").exists(), "it would hide the Hugging Face package `kernels`"
    assert [p for p in python_files(ROOT / "tests") if p.name == "__init__.py"] == []


def test_a_package_named_kernels_is_found_behind_this_repository(tmp_path: Path) -> None:
    package = tmp_path / "kernels" / "__init__.py"
    package.parent.mkdir()
    package.touch()
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]; import kernels; print(kernels.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert Path(done.stdout.strip()) == package


@pytest.mark.skipif(not (ROOT / "kvstore").is_dir(), reason="an unpacked sdist holds the folders, not the links")
@pytest.mark.parametrize("folder", GROUND)
def test_the_package_links_to_the_folder(folder: str) -> None:
    link = ROOT / "epic_rag" / folder
    assert link.is_symlink(), "a clone without symlinks: see the mend that `pip install -e .` prints"
    assert link.readlink().as_posix() == f"../{folder}"


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running `code`."""
    script = f"{code}\nimport sys\nsys.stderr.write(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("epic_rag", {"torch", "transformers", "langchain_core", "langchain"}),
        ("epic_rag.kvstore", {"transformers", "langchain_core", "langchain"}),
        ("epic_rag.retrievers", {"transformers", "langchain_core", "langchain"}),
    ],
)
def test_an_import_loads_only_what_it_needs(module: str, absent: set[str]) -> None:
    assert loaded_by(f"import {module}") & absent == set()


def test_help_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\nfrom epic_rag.cli import main\nsys.argv = ['epic-rag', '--help']\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code"
    )
    assert loaded_by(code) & {"torch", "transformers", "langchain_core"} == set()
