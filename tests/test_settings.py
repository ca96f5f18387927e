"""Settings: which of several places counts, what a mistake says, and what stays secret."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import pytest

from epic_rag import config
from epic_rag.errors import ConfigError
from epic_rag.settings import DEFAULT, GIVEN, Settings, answering, configured, resolve, table
from epic_rag.settings.files import settings_files


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder as the current one, a user's folder beside it, and no variable set."""
    for name in [name for name in os.environ if name.startswith("EPIC_RAG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    (tmp_path / "project" / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "user" / "epic-rag").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def user_file(home: Path, text: str) -> Path:
    return write(home / "user" / "epic-rag" / "config.toml", text)


def project_file(home: Path, text: str) -> Path:
    return write(home / "project" / "epic-rag.toml", text)


def mistake() -> str:
    with pytest.raises(ConfigError) as caught:
        resolve()
    return str(caught.value)


def test_each_place_overrides_the_next(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def k_now(given: int | None = None) -> tuple[object, str]:
        resolved = resolve({"k": given})
        return resolved.settings.k, resolved.origins["k"]

    assert k_now() == (config.DEFAULT_K, DEFAULT)
    user = user_file(home, "k = 2\n")
    assert k_now() == (2, f"{user}:1")
    pyproject = write(home / "project" / "pyproject.toml", '[project]\nname = "x"\nk = 99\n\n[tool.epic-rag]\nk = 3\n')
    assert k_now() == (3, f"{pyproject}:6")
    own = project_file(home, "# ours\nk = 4\n")
    assert k_now() == (4, f"{own}:2")
    monkeypatch.setenv("EPIC_RAG_K", "5")
    assert k_now() == (5, "EPIC_RAG_K")
    assert k_now(6) == (6, GIVEN)
    monkeypatch.setenv("EPIC_RAG_K", " ")
    assert k_now() == (4, f"{own}:2"), "an empty variable asks for nothing"


def test_files_are_overridden_one_setting_at_a_time(home: Path) -> None:
    user_file(home, 'selector = "none"\nk = 2\nmax-tokens = 7\n')
    project_file(home, "k = 4\ntemperature = 1\nbudget = 64\nallow_fallback = true\n")
    settings = configured({"store": "", "model": None})
    assert (settings.selector, settings.k, settings.max_tokens) == ("none", 4, 7)
    assert (settings.temperature, settings.budget, settings.allow_fallback) == (1.0, 64, True)
    assert isinstance(settings.temperature, float)
    assert (settings.store, settings.model) == (config.DEFAULT_STORE, None)


def test_the_nearest_folder_with_a_file_is_the_project(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project_file(home, 'k = 4\nselector = "none"\n')
    monkeypatch.chdir(home / "project" / "deep" / "deeper")
    write(home / "project" / "deep" / "pyproject.toml", '[tool.other]\nname = "epic-rag"\n')
    assert configured().k == 4
    write(home / "project" / "deep" / "pyproject.toml", "[tool.epic-rag]\nk = 3\n")
    assert configured().k == 3
    assert configured().selector == config.DEFAULT_SELECTOR, "a project is one folder's"
    assert resolve(folder=home / "project").settings.k == 4


def test_a_default_is_what_the_table_says() -> None:
    resolved = resolve()
    assert resolved.settings == Settings()
    assert set(resolved.origins) == {row.name for row in table()} == {row.name for row in fields(Settings)}
    assert set(resolved.origins.values()) == {DEFAULT}
    assert all(row.meaning for row in table())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('selecter = "none"\n', ":1: unknown setting 'selecter': did you mean 'selector'?"),
        ("\n\nwhatever = 1\n", ":3: unknown setting 'whatever': expected one of store, model,"),
        ("[ask]\nk = 3\n", ":1: unknown setting 'ask': expected one of"),
        ('# k\nk = "eight"\n', ":2: k: expected a whole number, at least 1, got 'eight'"),
        ("k = 0\n", ":1: k: expected a whole number, at least 1, got 0"),
        ("k = true\n", ":1: k: expected a whole number, at least 1, got True"),
        ("k = 2.0\n", ":1: k: expected a whole number"),
        ("temperature = nan\n", ":1: temperature: expected a number, at least 0, got nan"),
        ("allow-fallback = 1\n", ":1: allow_fallback: expected true or false, got 1"),
        ("budget = [1]\n", ":1: budget: expected a string or a whole number, got [1]"),
        ('dtype = "fp8"\n', ":1: dtype: expected one of auto, bfloat16, float16, float32, got 'fp8'"),
        ("max-tokens = 1\nmax_tokens = 2\n", ":2: 'max_tokens' is set twice"),
        ("k = \n", "not TOML: Invalid value (at line 1, column 5)"),
        ("k = 1\nk = 2\n", "not TOML: Cannot overwrite a value (at line 2"),
        ('cache = "x"\n', ":1: cache: it comes from the environment only: set EPIC_RAG_CACHE"),
    ],
)
@pytest.mark.parametrize("scope", ["project", "user"])
def test_a_mistake_in_a_file_names_file_line_and_mend(home: Path, text: str, said: str, scope: str) -> None:
    path = project_file(home, text) if scope == "project" else user_file(home, text)
    assert mistake().startswith(str(path))
    assert said in mistake()


def test_a_mistake_is_told_though_the_environment_overrides_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project_file(home, 'k = "eight"\n')
    monkeypatch.setenv("EPIC_RAG_K", "5")
    assert "k: expected a whole number" in mistake()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("K", "eight", "EPIC_RAG_K: expected a whole number, at least 1, got 'eight'"),
        ("TOP_P", "much", "EPIC_RAG_TOP_P: expected a number, at least 0, got 'much'"),
        ("ALLOW_FALLBACK", "maybe", "EPIC_RAG_ALLOW_FALLBACK: expected true or false, got 'maybe'"),
        ("RETRIEVER", "magic", "EPIC_RAG_RETRIEVER: expected one of bm25, dense, hybrid, got 'magic'"),
    ],
)
def test_a_mistake_in_a_variable_names_it(name: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"EPIC_RAG_{name}", text)
    assert mistake() == said


def test_variables_are_read_in_the_settings_type(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"ALLOW_FALLBACK": "Yes", "TEMPERATURE": "0.5", "SEED": "7", "BUDGET": "25%", "MODEL": "demo"}
    for name, text in texts.items():
        monkeypatch.setenv(f"EPIC_RAG_{name}", text)
    found = configured()
    assert (found.allow_fallback, found.temperature, found.seed, found.budget) == (True, 0.5, 7, "25%")
    assert found.model == "demo"


@pytest.mark.parametrize("name", ["salt", "store_key"])
def test_secrets_come_from_the_environment_only_and_are_never_shown(
    home: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hush" * 10
    path = project_file(home, f'{name} = "{secret}"\n')
    assert mistake() == f"{path}:1: {name}: a secret comes from the environment only: set EPIC_RAG_{name.upper()}"
    path.unlink()
    monkeypatch.setenv(f"EPIC_RAG_{name.upper()}", secret)
    resolved, row = resolve(), next(row for row in table() if row.name == name)
    assert resolved.value(name) == secret
    assert row.shown(resolved.value(name)) == "***"
    assert row.shown(None) is None
    assert secret not in repr(resolved)


def test_an_address_with_a_password_comes_from_the_environment_only(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "redis://ann:hush@host/0"
    for path in (project_file(home, f'store = "{address}"\n'), user_file(home, f'store = "{address}"\n')):
        said = mistake()
        assert said.startswith(f"{path}:1: store: the address 'redis://***@host/0' holds a user or a password")
        assert "set EPIC_RAG_STORE" in said
        assert "hush" not in said
        path.unlink()
    monkeypatch.setenv("EPIC_RAG_STORE", address)
    row = next(row for row in table() if row.name == "store")
    assert configured().store == address
    assert row.shown(address) == "redis://***@host/0"


def test_a_projects_file_names_no_module_to_import(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project_file(home, 'embeddings = "somewhere:Embeddings?key=hush"\n')
    assert mistake().startswith(f"{path}:1: embeddings: a module to import is code to run")
    path.write_text('embeddings = "./minilm"\n')
    assert configured().embeddings == f"{home / 'project'}/minilm"
    path.unlink()
    user_file(home, 'embeddings = "somewhere:Embeddings?key=hush"\n')
    row = next(row for row in table() if row.name == "embeddings")
    assert configured().embeddings == "somewhere:Embeddings?key=hush"
    assert row.shown(configured().embeddings) == "somewhere:Embeddings?***"
    assert row.shown("demo") == "demo"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("kv", "disk://{0}/kv"),
        ("my kv?codec=lz4", "disk://{0}/my%20kv?codec=lz4"),
        ("disk://kv", "disk://{0}/kv"),
        ("disk:///kv", "disk:///kv"),
        ("/kv", "/kv"),
        ("~/kv", "~/kv"),
        ("memory://", "memory://"),
        ("redis://host", "redis://host"),
        ("tiered:memory://,disk://kv?codec=lz4", "tiered:memory://,disk://{0}/kv?codec=lz4"),
        ("tiered:disk://a,disk:///b", "tiered:disk://{0}/a,disk:///b"),
    ],
)
def test_a_projects_relative_store_lies_in_its_folder(home: Path, written: str, meant: str) -> None:
    project_file(home, f'store = "{written}"\n')
    assert resolve(folder=home / "project" / "deep").settings.store == meant.format(home / "project")
    (home / "project" / "epic-rag.toml").unlink()
    user_file(home, f'store = "{written}"\n')
    assert configured().store == written, "a user's relative store lies in the current folder, like the default"


@pytest.mark.parametrize(
    ("written", "meant"), [("./m", "{0}/m"), ("m.gguf", "{0}/m.gguf"), ("org/name", "org/name"), ("demo", "demo")]
)
def test_a_projects_relative_model_lies_in_its_folder(home: Path, written: str, meant: str) -> None:
    project_file(home, f'model = "{written}"\n')
    assert resolve(folder=home / "project" / "deep").settings.model == meant.format(home / "project")


def test_only_a_pyproject_with_our_table_can_be_wrong(home: Path) -> None:
    path = write(home / "project" / "pyproject.toml", "[tool.black\n")
    assert resolve().settings == Settings()
    path.write_text('name = "epic-rag"\n[tool.black\n')
    assert resolve().settings == Settings()
    path.write_text("[tool.epic-rag]\nk = = 3\n")
    assert mistake().startswith(f"{path}: not TOML: ")
    path.write_text("[tool]\nepic-rag = 3\n")
    assert "expected a table, got 3: write [tool.epic-rag]" in mistake()


def test_files_that_cannot_be_read_are_told(home: Path) -> None:
    path = home / "project" / "epic-rag.toml"
    path.write_bytes(b"k = 3 # \xff\n")
    assert mistake() == f"{path}: not UTF-8 at byte 8: save it as UTF-8"
    path.write_bytes(b"\xef\xbb\xbfk = 3\r\n")
    assert configured().k == 3, "with a byte order mark and the line ends of Windows"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owner here that could be asked for")
def test_another_users_file_in_a_shared_folder_is_passed_over(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project_file(home, "k = 3\n")
    monkeypatch.chdir(home / "project" / "deep")
    monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid + 1)
    monkeypatch.setattr("epic_rag.settings.files._TRUSTED", frozenset())
    assert configured().k == 3, "not everybody can write there"
    (home / "project").chmod(0o1777)
    assert configured().k == config.DEFAULT_K
    assert "another user's file" in settings_files(Path.cwd())[0].passed_over


def test_a_user_without_a_home_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert resolve().settings == Settings()


def test_classes_take_what_is_configured_of_their_fields(home: Path) -> None:
    from epic_rag import EpicRAG

    project_file(home, 'k = 3\nretriever = "bm25"\nmax-tokens = 5\n')
    assert answering({"k", "selector", "retriever"}) == {"k": 3}
    assert answering(EpicRAG.model_fields) == {"k": 3, "max_tokens": 5}


def test_from_python_the_same_settings_count(home: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from epic_rag import EpicRAG

    monkeypatch.setenv("EPIC_RAG_CACHE", str(home / "cache"))
    monkeypatch.setenv("EPIC_RAG_DTYPE", "float32")
    project_file(home, f'model = "{tiny_folder}"\nstore = "memory://"\nk = 3\nselector = "none"\ndtype = "bfloat16"\n')
    rag = EpicRAG.from_store(k=5)
    assert (rag.k, rag.selector, rag.max_tokens) == (5, "none", config.DEFAULT_MAX_TOKENS)
    assert rag.engine.model.name == str(tiny_folder)
    assert str(rag.engine.model.dtype) == "torch.float32"
    rag.engine.close()
