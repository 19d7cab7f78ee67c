"""Files of the authors' repositories, read from bare clones, and the rows of the comparison."""

from __future__ import annotations

import csv
import io
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path


class ArtefactMissing(Exception):
    """The directory of artefacts does not contain a repository. The message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of a system: that of its authors and ours."""

    system: str
    workload: str
    metric: str
    theirs: float
    ours: float
    why: str = ""  # what explains a difference of more than 5 %

    @property
    def difference(self) -> float:
        return self.ours / self.theirs - 1

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def repository(artefacts: Path, name: str) -> Path:
    """The git directory of the repository with this name."""
    for folder in sorted(artefacts.glob(f"*{name}*")):
        for candidate in (folder, folder / ".git", folder / "repo"):
            if (candidate / "HEAD").is_file():
                return candidate
    raise ArtefactMissing(f"{artefacts} contains no clone of {name}.")


def read_file(repo: Path, path: str, branch: str = "HEAD") -> str:
    return read_bytes(repo, path, branch).decode()


def read_bytes(repo: Path, path: str, branch: str = "HEAD") -> bytes:
    return subprocess.run(
        ["git", f"--git-dir={repo}", "show", f"{branch}:{path}"], check=True, capture_output=True
    ).stdout


def read_csv(repo: Path, path: str, branch: str = "HEAD") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(read_file(repo, path, branch))))


def file_names(repo: Path, folder: str, branch: str = "HEAD") -> list[str]:
    words = ["git", f"--git-dir={repo}", "ls-tree", "--name-only", f"{branch}:{folder}"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
