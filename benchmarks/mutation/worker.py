"""A process that holds the heavy imports and forks for every mutant: the child has one file as the mutant has it.

It reads a line of JSON for each mutant (`module`, `source`, `tests`, `seconds`) and answers with one: `killed`,
`survived` or `late`, and the seconds that it took. The package is imported by the children alone.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import CodeType, ModuleType

PRELOADED = ("torch", "numpy", "transformers", "safetensors.torch", "hypothesis", "pytest", "PIL.Image", "xxhash")


class _MutantLoader(importlib.machinery.SourceFileLoader):
    """Loads one module from a text instead of its file."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


class MutantFinder(importlib.abc.MetaPathFinder):
    """Finds one module as the mutant has it, and leaves all others to those that come after it."""

    def __init__(self, module: str, text: str) -> None:
        self._module, self._text = module, text

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if found is None or found.origin is None:
            return None
        loader = _MutantLoader(name, found.origin, self._text)
        packages = found.submodule_search_locations
        return importlib.util.spec_from_file_location(
            name, found.origin, loader=loader, submodule_search_locations=packages
        )


def _test(module: str, source: str, tests: list[str]) -> None:
    """Run tests in this process, which ends with 0 where all pass."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    sys.meta_path.insert(0, MutantFinder(module, source))
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
    os._exit(int(pytest.main([*options, *tests])))


def judge(module: str, source: str, tests: list[str], seconds: float) -> tuple[str, float]:
    """Return what becomes of a mutant, and how long it took."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _test(module, source, tests)
    while time.monotonic() - began < seconds:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            survived = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
            return ("survived" if survived else "killed"), time.monotonic() - began
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "late", time.monotonic() - began


def main() -> None:
    """Answer for one line of standard input after another."""
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        found, seconds = judge(asked["module"], asked["source"], asked["tests"], asked["seconds"])
        print(json.dumps({"found": found, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
