"""The template database: built once, and again after every change that could change a migration."""

from __future__ import annotations

import pytest

from acmeweb.common.env import ROOT
from tests import schema_template

SOURCES = {
    "acmeweb/__init__.py": "",
    "acmeweb/settings.py": "from acmeweb.common import env",
    "acmeweb/common/__init__.py": "",
    "acmeweb/common/env.py": "",
    "acmeweb/services/postgres.py": "",
    "jobs/__init__.py": "",
    "jobs/migrations/__init__.py": "",
    "jobs/migrations/0001_initial.py": "import django\nimport jobs.core.names",
    "jobs/core/__init__.py": "",
    "jobs/core/names.py": "from . import words",
    "jobs/core/words.py": "def f():\n    from jobs import late",
    "jobs/late.py": "",
    "jobs/pages.py": "",
}


@pytest.fixture
def root(tmp_path):
    for name, text in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "jobs/pages.py"])
def test_change_of_a_migration_or_of_what_it_imports_changes_the_key(root, name):
    before = schema_template.schema_key(root)

    (root / name).write_text(SOURCES[name] + "\n# changed")

    assert schema_template.schema_key(root) != before


def test_new_removed_and_renamed_migrations_change_the_key(root):
    first = schema_template.schema_key(root)
    new = root / "jobs/migrations/0002_more.py"
    new.write_text("")
    with_new = schema_template.schema_key(root)
    new.rename(new.with_name("0002_less.py"))
    renamed = schema_template.schema_key(root)
    new.with_name("0002_less.py").unlink()

    assert len({first, with_new, renamed}) == 3
    assert schema_template.schema_key(root) == first


def test_change_of_another_module_leaves_the_key(root):
    before = schema_template.schema_key(root)

    (root / "jobs/pages.py").write_text("changed = True")

    assert schema_template.schema_key(root) == before


def test_all_migrations_of_the_product_count():
    files = schema_template.imported_files(ROOT.glob("*/migrations/*.py"), ROOT)

    assert {path.relative_to(ROOT).parts[0] for path in files} >= {"jobs", "failures", "scheduling"}
    assert ROOT / "failures/models/pgvector.py" in files  # creates the extension in a migration
    assert ROOT / "jobs/core/lifecycle.py" in files


def test_template_is_built_once_per_key_and_copied(tmp_path):
    store, builds = tmp_path / "store", []

    def build(directory):
        builds.append(directory)
        (directory / "file").write_text(f"build {len(builds)}")

    for number, key in enumerate(["a", "a", "b"]):
        schema_template.copy_or_build(tmp_path / str(number), build, store=store, key=key)

    assert [(tmp_path / str(number) / "file").read_text() for number in range(3)] == ["build 1", "build 1", "build 2"]
    assert sorted(path.name for path in store.iterdir()) == ["b", "lock"]


def test_interrupted_build_is_repeated(tmp_path):
    def interrupted(directory):
        (directory / "half").touch()
        raise KeyboardInterrupt

    def complete(directory):
        (directory / "whole").touch()

    with pytest.raises(KeyboardInterrupt):
        schema_template.copy_or_build(tmp_path / "first", interrupted, store=tmp_path / "store", key="a")
    schema_template.copy_or_build(tmp_path / "second", complete, store=tmp_path / "store", key="a")

    assert [path.name for path in (tmp_path / "second").iterdir()] == ["whole"]
