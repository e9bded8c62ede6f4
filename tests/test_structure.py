"""The structure of the code: no circle of imports, inside rooms too; no class name twice; one concept a file; and how
large the repository is."""

import ast
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"emblema": ROOT / "src" / "emblema", "benchmarks": ROOT / "benchmarks"}
LINES = 650
BYTES = 37_000_000
"""Of all tracked files together."""


def modules(package: str) -> dict[str, Path]:
    """Return the modules of a package by name, tests left out."""
    folder = FOLDERS[package]
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if "tests" not in parts:
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports, those imported for types or inside functions too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected parts of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            part = stack[at:]
            del stack[at:]
            if len(part) > 1:
                found.append(sorted(part))

    for name in graph:
        if name not in index:
            visit(name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("package", FOLDERS)
def test_no_circle_of_imports(package: str) -> None:
    known = modules(package)
    # The package itself gives out names of its rooms when they are asked for.
    graph = {name: {other for other in imports(path, known) if other in known and other != name and other != package}
             for name, path in known.items() if name != package}  # fmt: skip
    assert circles(graph) == []


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_no_class_name_twice() -> None:
    counted = Counter(
        node.name
        for package in FOLDERS
        for path in modules(package).values()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in counted.items() if count > 1] == []


@pytest.mark.parametrize("package", FOLDERS)
def test_files_are_short(package: str) -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules(package).items()}
    assert {name: length for name, length in lengths.items() if length > LINES} == {}


def test_the_tracked_files_are_small() -> None:
    git = shutil.which("git")
    listed = git and subprocess.run([git, "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if not listed or listed.returncode:
        pytest.skip("this is no checkout of git")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    sizes = {path: path.lstat().st_size for path in paths if path.is_file()}
    assert sum(sizes.values()) < BYTES, sorted(sizes, key=lambda path: sizes[path])[-20:]
