"""Fuzz targets with atheris: `python -m tests.fuzz --seconds 120 [TARGET ...]`, on Linux with the extra `fuzz`.

Each target has its share of the time, a process of its own, and new inputs at every run, but where a seed is given. An
input that fails is written to build/fuzz, and belongs into tests/fuzz/found/TARGET once it is understood.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.targets import MODULES, inputs_of, target_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "fuzz"
INSTRUMENTED = [
    "emblema.store", "emblema.media", "emblema.serve", "emblema.session.prompt_reader",
    "json", "python_multipart", "starlette.formparsers",
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0, help="of the inputs; 0: drawn at every run")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given, flags = parser.parse_known_args()
    if given.one:
        fuzz(given.one, [*flags, *given.targets])
    if find_spec("atheris") is None:
        sys.exit("atheris is not installed: pip install 'emblema[fuzz]' (Linux on x86-64)")
    unknown = set(given.targets) - MODULES.keys()
    if unknown:
        parser.error(f"there is no target {sorted(unknown)[0]!r}: choose of {', '.join(MODULES)}")
    names = given.targets or [*MODULES]
    failed = [name for name in names if not passes(name, given.seconds / len(names), given.seed)]
    if failed:
        print(f"failed: {', '.join(failed)}; the inputs are in {RESULTS}")
    return bool(failed)


def passes(name: str, seconds: float, seed: int) -> bool:
    """Fuzz one target in a process; print how many inputs were tried, or how it failed."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    limits = {"seed": seed, "max_total_time": max(1, round(seconds)), "timeout": 20, "rss_limit_mb": 3072}
    flags = [f"-{key}={value}" for key, value in limits.items()]
    flags += ["-print_final_stats=1", f"-artifact_prefix={RESULTS}/{name}-"]
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        command = [sys.executable, "-m", "tests.fuzz", "--one", name, *flags, str(corpus)]
        places = {**os.environ, "TMPDIR": folder}
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=places, timeout=seconds + 300)
        seeds = len([*corpus.glob("seed-*")])
    runs = next((line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line), "0")
    passed = done.returncode == 0 and int(runs) >= seeds > 0
    print(f"{name}: {runs} inputs in {seconds:.0f} s, from {seeds}" + ("" if passed else ", FAILED"), flush=True)
    if not passed:
        print(done.stdout[-2000:], done.stderr[-6000:], sep="\n")
    return passed


def fuzz(name: str, flags: list[str]) -> None:
    """Fuzz one target in this process, with libFuzzer's options, the last a folder for inputs; does not return."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        target = target_of(name)
    for number, data in enumerate(inputs_of(name)):
        (Path(flags[-1]) / f"seed-{number}").write_bytes(data)
    atheris.Setup([sys.argv[0], f"-max_len={target.largest}", *flags], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
