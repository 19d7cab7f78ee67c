"""Documents that are generated or measured: they match the code, their links lead somewhere, and folders stay small."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from acmeweb.common.env import ROOT
from docs.module_map import GENERATED_FILES, module_map

MOST_FILES = 24  # of one folder
MOST_LINES = {"README.md": 120, "ARCHITECTURE.md": 150, "docs/modules.md": 200, "bench/README.md": 350}
MOST_COLUMNS = 120
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FOLDERS = ("*.md", "docs/**/*.md", "bench/*.md", "client/*.md")
DOCUMENTS = sorted(path for folder in FOLDERS for path in ROOT.glob(folder))


@pytest.mark.parametrize("name", GENERATED_FILES)
def test_generated_document_matches_the_code(name):
    assert (ROOT / "docs" / name).read_text() == GENERATED_FILES[name](), "run `make map`"


@pytest.mark.parametrize(("name", "most"), MOST_LINES.items())
def test_document_is_short(name, most):
    assert len((ROOT / name).read_text().splitlines()) <= most


def test_every_package_states_its_purpose():
    assert re.findall(r"\| `(\S+)` \| \d+ \|  \|", module_map()) == []


def anchors(document):
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_to_a_file_and_its_heading(document):
    for name, heading in LINK.findall(document.read_text()):
        target = document.parent / name if name else document

        assert target.exists(), name
        assert not heading or heading in anchors(target), f"{name}#{heading}"


def test_no_line_of_a_template_is_longer_than_a_line_of_code():
    lines = {path: path.read_text().splitlines() for path in (ROOT / "templates").rglob("*") if path.is_file()}
    too_long = [path.name for path, rows in lines.items() if any(len(row) > MOST_COLUMNS for row in rows)]

    assert lines and too_long == []


def test_no_folder_holds_too_many_modules():
    tops = ("acmeweb", "jobs", "failures", "scheduling", "tests", "client", "bench", "docs")
    modules = (path for top in tops for path in (ROOT / top).rglob("*.py") if "migrations" not in path.parts)
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in modules)

    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}
