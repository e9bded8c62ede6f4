"""The page on the design: every file and name in it exists, its rooms are the contract's, and no lock is left out."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "emblema"
PAGE = (ROOT / "docs" / "design.md").read_text()
REFERENCES = sorted(set(re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", PAGE)))
LOCKS = re.compile(r"threading\.(?:Lock|RLock|Condition|Semaphore)\(|fcntl\.flock\(")


@cache
def names(path: str) -> frozenset[str]:
    """Return the names that a file defines, attributes and methods as `Class.name`."""
    tree = ast.parse((SOURCE / path).read_text())
    return frozenset(_names(tree.body))


def _names(body: list[ast.stmt]) -> set[str]:
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for name in _names(node.body)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_every_room_has_a_file_or_name_on_the_page() -> None:
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    named = {path.split("/")[0].removesuffix(".py") for path, _ in REFERENCES}
    assert named == rooms - {"__init__"}


@pytest.mark.parametrize(("path", "name"), REFERENCES, ids=lambda value: value or "file")
def test_a_file_and_name_exist(path: str, name: str) -> None:
    assert (SOURCE / path).is_file(), f"docs/design.md names {path}, which is not there"
    assert not name or name in names(path), f"docs/design.md names {path}:{name}, which is not there"


def test_its_rooms_are_those_of_the_contract_in_their_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    ordered = [[room for room in re.findall(r"\w+", layer)] for layer in layers]
    table = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE.split("## Rooms")[1].split("\n## ")[0], re.MULTILINE)
    assert [sorted(re.findall(r"\w+", rooms)) for rooms in table] == [sorted(rooms) for rooms in ordered]


def test_no_lock_is_left_out() -> None:
    section = PAGE.split("## Who owns which lock?")[1].split("\n## ")[0]
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if LOCKS.search(path.read_text())}
    left_out = sorted(file for file in files if f"`{file}" not in section)
    assert not left_out, f"docs/design.md does not say who owns the locks of {left_out}"
