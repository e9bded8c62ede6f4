"""Which mutants there are: every change that cosmic-ray's operators make to a room's files, and a sample of them."""

import ast
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parents[2]
SKIPPED = ("no_op", "variable", "Variable", "ExceptionReplacer", "RemoveDecorator")
"""Operators that change nothing or a declaration, need to be told a variable's name, or name an unknown exception."""


@dataclass(frozen=True, slots=True)
class Room:
    """Files that are mutated, and the tests that are to notice it.

    Attributes:
        files: patterns below `src/emblema`.
        tests: files and folders, the quickest first.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = {
    "kv": Room(("kv/*.py",), ("tests/kv",)),
    "link": Room(
        ("link/*.py", "link/policy/*.py", "link/strategies/*.py"),
        (
            *("tests/link/test_plan.py", "tests/link/test_prompt.py", "tests/link/test_policy_fidelity.py"),
            *("tests/link/test_policy_choosing.py", "tests/link/test_policy_frequency.py"),
            *("tests/link/test_policy_margins.py", "tests/link/test_policy_auto.py", "tests/link/test_taken_rows.py"),
            *("tests/link/test_row_states.py", "tests/link/test_strategies_plain.py", "tests/link/test_forming.py"),
            *("tests/link/test_query.py", "tests/link/test_executor.py", "tests/link/test_strategies.py"),
            *("tests/link/test_policy_learning_budget.py", "tests/link/test_strategies_pair.py"),
        ),
    ),
    "store": Room(
        ("store/format.py", "store/identity.py", "store/keys.py", "store/record.py", "store/codec.py"),
        (
            *("tests/store/test_identity.py", "tests/store/test_keys.py", "tests/store/test_format.py"),
            *("tests/store/test_format_document.py", "tests/store/test_codec.py", "tests/store/test_hostile_files.py"),
            *("tests/store/test_forged_files.py", "tests/store/test_compression.py", "tests/store/test_files.py"),
        ),
    ),
    "vllm": Room(
        ("plugin/spans.py", "plugin/request_plan.py", "vllm/planner.py", "vllm/pages.py", "vllm/step_metadata.py"),
        (
            *("tests/plugin/test_spans.py", "tests/vllm/test_pages.py", "tests/vllm/test_planner.py"),
            *("tests/vllm/test_planning.py", "tests/plugin/test_request_plan.py"),
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file.

    Attributes:
        room: of the file.
        path: from the repository's root.
        operator: cosmic-ray's name of the change.
        occurrence: which of the places that the operator finds in the file.
        line: of the file.
        before, after: the line as it is, and as the mutant has it.
    """

    room: str
    path: str
    operator: str
    occurrence: int
    line: int
    before: str = ""
    after: str = ""

    @property
    def key(self) -> str:
        """Return a short name, the same for the same change of the same file."""
        text = f"{self.path} {self.operator} {self.occurrence} {source_digest(self.path)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def source(self) -> str:
        """Return the file with the change."""
        code = (ROOT / self.path).read_text()
        mutated = mutate_code(code, get_operator(self.operator)(), self.occurrence)
        return str(mutated)


def tests_for(room: str, path: str) -> list[str]:
    """Return the tests of a room, those that are named after a file first."""
    found = [
        each
        for test in ROOMS[room].tests
        for each in (sorted((ROOT / test).glob("test_*.py")) if (ROOT / test).is_dir() else [ROOT / test])
    ]
    return [str(each.relative_to(ROOT)) for each in sorted(found, key=lambda each: Path(path).stem not in each.stem)]


def source_digest(path: str) -> str:
    """Return a digest of a file as it is."""
    return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()


def room_digest(room: str) -> str:
    """Return a digest of a room's files and tests as they are."""
    digest = hashlib.sha256()
    for pattern in ROOMS[room].files:
        for path in sorted((ROOT / "src/emblema").glob(pattern)):
            digest.update(path.read_bytes())
    for test in tests_for(room, ""):
        digest.update((ROOT / test).read_bytes())
    return digest.hexdigest()[:16]


def mutants_of(room: str) -> dict[tuple[str, int, int], list[Mutant]]:
    """Return the mutants of a room by the place that they change: path, line and column."""
    places: dict[tuple[str, int, int], list[Mutant]] = {}
    for pattern in ROOMS[room].files:
        for path in sorted((ROOT / "src/emblema").glob(pattern)):
            for mutant, column in _mutants(room, path):
                places.setdefault((mutant.path, mutant.line, column), []).append(mutant)
    return places


def _mutants(room: str, path: Path) -> Iterator[tuple[Mutant, int]]:
    code = path.read_text()
    tree, types = get_ast(code), _annotations(code)
    for name in operator_names():
        operator = get_operator(name)
        if any(word in name for word in SKIPPED) or operator.arguments():
            continue
        found = (
            (begin, node.start_pos) for node in ast_nodes(tree) for begin, _ in operator().mutation_positions(node)
        )
        for occurrence, (begin, _) in enumerate(found):
            if not any(first <= begin < last for first, last in types):
                yield Mutant(room, str(path.relative_to(ROOT)), name, occurrence, begin[0]), begin[1]


def _annotations(code: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where types are named and classes and functions decorated: a change there is none of behaviour."""
    named: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            named += [node.returns, *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            named += node.decorator_list
        elif isinstance(node, ast.arg | ast.AnnAssign):
            named.append(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id[:1].isupper() and not target.id.isupper():
                named.append(node.value)
    return [((n.lineno, n.col_offset), (n.end_lineno or 0, n.end_col_offset or 0)) for n in named if n is not None]


def sample(room: str, seed: int, most: int) -> list[Mutant]:
    """Return mutants of different places, each place alike and of a place each operator alike.

    Args:
        most: so many at most.
    """
    places, chance = mutants_of(room), random.Random(f"{seed} {room}")
    chosen = chance.sample(sorted(places), min(most, len(places)))
    return [_described(chance.choice(places[place])) for place in chosen]


def _described(mutant: Mutant) -> Mutant:
    before = (ROOT / mutant.path).read_text().splitlines()
    after = mutant.source().splitlines()
    changed = next(
        (number for number, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), mutant.line - 1
    )
    lines = before[changed].strip(), after[changed].strip() if changed < len(after) else ""
    return Mutant(mutant.room, mutant.path, mutant.operator, mutant.occurrence, changed + 1, *lines)
