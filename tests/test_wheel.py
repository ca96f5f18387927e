"""What is built: the same wheel from a checkout, from a clone without symlinks and from the sdist, and it imports.

The checkout is a copy of the working tree committed to a git repository of its own, so that the clones are real ones.
The wheel is installed alone into a bare environment; the libraries it needs are lent from this one through PYTHONPATH.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GROUND = ("kernels", "kvstore", "retrievers")
PACKED = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore", "epic_rag", *GROUND)
EDITABLE = "import sys; from hatchling.build import build_editable; print(build_editable(sys.argv[1]))"

pytestmark = [
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed; the test clones a repository"),
    pytest.mark.skipif(not (ROOT / "kvstore").is_dir(), reason="an unpacked sdist has no links to test"),
]


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, whatever its exit status, with its output captured."""
    env = {**os.environ, **environment}
    return subprocess.run([str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def must(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Runs a command that has to succeed; returns its standard output."""
    done = run(*command, cwd=cwd, **environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(tree: Path, out: Path, *options: str) -> None:
    must(sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", out, tree, cwd=out.parent)


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def wheel_of(out: Path) -> Path:
    return only(out, "*.whl")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository holding what is packed, links as links."""
    tree = tmp_path_factory.mktemp("checkout") / "epic-rag"
    tree.mkdir()
    for name in PACKED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, tree / name)
    must("git", "init", "--quiet", cwd=tree)
    must("git", "add", "--all", cwd=tree)
    author = ("-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false")
    must("git", *author, "commit", "--quiet", "--message", "test", cwd=tree)
    return tree


@pytest.fixture(scope="module")
def plain_clone(checkout: Path) -> Path:
    """A clone as git makes it where the file system has no symlinks: the three links are small text files."""
    tree = checkout.with_name("plain-clone")
    must("git", "clone", "--quiet", "-c", "core.symlinks=false", checkout, tree, cwd=checkout.parent)
    assert (tree / "epic_rag/kvstore").is_file()
    return tree


@pytest.fixture(scope="module")
def built(checkout: Path) -> Path:
    """A folder with the sdist of the checkout and the wheel built from that sdist."""
    out = checkout.with_name("built")
    build(checkout, out)
    return out


@pytest.fixture(scope="module")
def bare_python(built: Path) -> Path:
    """The interpreter of an environment that holds the wheel and nothing else."""
    home = built.with_name("bare")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    must(*pip, wheel_of(built), cwd=home)
    return python


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    return set(names)


def test_the_wheel_holds_the_product_and_nothing_at_the_top(built: Path, checkout: Path) -> None:
    names = names_in(wheel_of(built))
    tracked = must("git", "ls-files", "epic_rag", *GROUND, cwd=checkout).splitlines()
    links = {f"epic_rag/{folder}" for folder in GROUND}
    expected = {f if f.startswith("epic_rag/") else f"epic_rag/{f}" for f in tracked} - links
    assert {n for n in names if ".dist-info/" not in n} == expected
    assert "epic_rag/py.typed" in names
    assert {n.split("/")[0].partition("-")[0] for n in names} == {"epic_rag"}
    assert any(n.endswith("/licenses/LICENSE") for n in names)


@pytest.mark.parametrize("folder", GROUND)
def test_the_wheel_holds_each_ground_folder(built: Path, folder: str) -> None:
    inside = {n.removeprefix(f"epic_rag/{folder}/") for n in names_in(wheel_of(built)) if f"/{folder}/" in n}
    assert any(n.endswith(".py") for n in inside)
    assert ("__init__.py" in inside) == (folder != "kernels")


def test_the_sdist_holds_each_ground_file_once(built: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        members = archive.getmembers()
    inside = [member.name.split("/", 1)[1] for member in members]
    assert all(member.isfile() for member in members)
    assert len(inside) == len(set(inside))
    assert not [name for name in inside if name.split("/")[0] in GROUND]
    assert "epic_rag/kvstore/__init__.py" in inside


def test_checkout_and_sdist_give_the_same_wheel(checkout: Path, built: Path, tmp_path: Path) -> None:
    build(checkout, tmp_path, "--wheel")
    assert wheel_of(tmp_path).read_bytes() == wheel_of(built).read_bytes()


def test_a_clone_without_symlinks_gives_the_same_archives(plain_clone: Path, built: Path, tmp_path: Path) -> None:
    build(plain_clone, tmp_path, "--wheel", "--sdist")
    assert wheel_of(tmp_path).read_bytes() == wheel_of(built).read_bytes()
    assert only(tmp_path, "*.tar.gz").read_bytes() == only(built, "*.tar.gz").read_bytes()


def test_an_incomplete_tree_is_refused_with_the_mend(checkout: Path, tmp_path: Path) -> None:
    tree = tmp_path / "incomplete"
    shutil.copytree(checkout, tree, symlinks=True)
    shutil.rmtree(tree / "kvstore")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--wheel", tree, cwd=tmp_path)
    assert done.returncode != 0
    assert "no Python file in kvstore/" in done.stderr
    assert "Mend: build from a whole checkout" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_editable_wheel_only_points_at_the_checkout(checkout: Path, tmp_path: Path) -> None:
    must(sys.executable, "-c", EDITABLE, tmp_path, cwd=checkout)
    wheel = wheel_of(tmp_path)
    assert {n for n in names_in(wheel) if ".dist-info/" not in n} == {"_epic_rag.pth"}
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("_epic_rag.pth").decode().strip() == str(checkout)


def test_an_editable_install_without_links_is_refused_and_the_mend_works(plain_clone: Path, tmp_path: Path) -> None:
    tree = tmp_path / "clone"
    shutil.copytree(plain_clone, tree, symlinks=True)
    done = run(sys.executable, "-c", EDITABLE, tmp_path, cwd=tree)
    assert done.returncode == 1
    assert "core.symlinks=false" in done.stderr
    mend = done.stderr.partition("Mend: ")[2].partition(" (on Windows")[0]
    must("sh", "-c", mend, cwd=tree)
    must(sys.executable, "-c", EDITABLE, tmp_path, cwd=tree)
    assert (tree / "epic_rag/kvstore").is_symlink()


def test_the_installed_wheel_imports(bare_python: Path, built: Path, tmp_path: Path) -> None:
    references = sorted(n for n in names_in(wheel_of(built)) if n.startswith("epic_rag/kernels/") and "_ref" in n)
    kernel = references[0].removesuffix(".py").replace("/", ".")
    code = f"import epic_rag, epic_rag.kvstore, epic_rag.retrievers, {kernel}; print(epic_rag.__file__)"
    lent = sysconfig.get_path("purelib")
    where = must(bare_python, "-c", code, cwd=tmp_path, PYTHONPATH=lent, PYTHONDONTWRITEBYTECODE="1")
    assert bare_python.parents[1] in Path(where.strip()).parents, "the wheel's own files were not the ones imported"


@pytest.mark.parametrize("folder", GROUND)
def test_the_installed_wheel_brings_no_ground_folder_to_the_top(bare_python: Path, folder: str, tmp_path: Path) -> None:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({folder!r}) is not None)"
    must(bare_python, "-c", code, cwd=tmp_path, PYTHONPATH="")
