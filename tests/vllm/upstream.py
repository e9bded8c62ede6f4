"""Run vLLM's own tests with the plugin installed and without it: `python -m tests.vllm.upstream [FILE ...]`.

The tests come from vLLM's source distribution, as old as the installed vLLM, and stay in `build`. Nothing asks for the
plugin, so every test has to end alike. Models of the hub are stood in for by configurations without weights: what needs
weights fails alike in both ways, and says nothing.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions, version
from pathlib import Path

from tests.attached import attached

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
PLACES = ("tests/v1/core", "tests/v1/kv_connector/unit", "tests/v1/ec_connector/unit")
STAND_INS = Path(__file__).parent / "stand_ins"
HUB = {
    "facebook/opt-125m": ("OPTConfig", "OPTForCausalLM"),
    "Qwen/Qwen1.5-7B": ("Qwen2Config", "Qwen2ForCausalLM"),
    "Qwen/Qwen3-0.6B": ("Qwen3Config", "Qwen3ForCausalLM"),
    "llava-hf/llava-1.5-7b-hf": ("LlavaConfig", "LlavaForConditionalGeneration"),
}
"""Models that tests of a scheduler name, as configurations of their classes' own sizes."""
REVISION = "0" * 40
WAYS: Mapping[str, Mapping[str, str]] = {"with the plugin": {}, "without": {"VLLM_PLUGINS": ""}}
SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", STAND_INS))),
}  # fmt: skip
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "loaded_plugins", "--tb=short")
PASSED, FAILED, SKIPPED, ERROR = "passed", "failed", "skipped", "error"
ENDINGS = (PASSED, FAILED, SKIPPED, ERROR)
STOPPING_SECONDS = 30
"""What a run that is stopped may take to write what it has found."""
SHOWN = 300
"""Characters of an error's text that are printed."""


@dataclass(frozen=True, slots=True)
class Run:
    """One file's tests in one way.

    Attributes:
        endings: of each test, by its name; no test where the file cannot be collected.
        reasons: the text of what failed, by test.
        remark: why tests are missing, or empty.
    """

    endings: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""

    def __str__(self) -> str:
        counts = Counter(self.endings.values())
        return " / ".join(str(counts[ending]) for ending in ENDINGS)


def vllm_version() -> str:
    """Return the release of the installed vLLM, whichever package brought it."""
    (package,) = {name for name in packages_distributions()["vllm"] if name.startswith("vllm")}
    return version(package).partition("+")[0]


def fetch(release: str) -> Path:
    """Return a folder with the tests of a release; pip fetches them where they are not there yet.

    Raises:
        SystemExit: pip finds no such source distribution.
    """
    folder = BUILD / f"vllm-{release}"
    if (folder / "tests").is_dir():
        return folder
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as temporary:
        # pip ends with an error, as it finds none of vLLM's build tools; what it has unpacked until then stays.
        line = ["download", "--quiet", "--no-deps", "--no-binary", "vllm", "--no-build-isolation", "--no-clean"]
        done = subprocess.run([sys.executable, "-m", "pip", *line, "--dest", temporary, f"vllm=={release}"],
                              env=os.environ | {"TMPDIR": temporary}, capture_output=True, text=True)  # fmt: skip
        source = next(Path(temporary).glob("pip-download-*/vllm_*/tests"), None)
        if source is None:
            raise SystemExit(f"pip fetched no source of vLLM {release}:\n{done.stderr[-2_000:]}")
        folder.mkdir(exist_ok=True)
        shutil.copy(source.parent / "pyproject.toml", folder)
        source.rename(folder / "tests")
    return folder


def write_hub(folder: Path) -> None:
    """Write a cache of the hub with configurations alone, unless it is there."""
    hub = folder / "hub"
    if hub.is_dir():
        return
    import transformers

    for name, (config, architecture) in HUB.items():
        model = hub / f"models--{name.replace('/', '--')}"
        (model / "refs").mkdir(parents=True, exist_ok=True)
        (model / "refs" / "main").write_text(REVISION)
        made = getattr(transformers, config)(architectures=[architecture], dtype="float16")
        made.save_pretrained(model / "snapshots" / REVISION)


def files_in(folder: Path, given: Sequence[str]) -> list[str]:
    """Return the test files to run, relative to the folder: those given, or all of `PLACES`."""
    if given:
        return [*given]
    found = [path for place in PLACES for path in (folder / place).rglob("test_*.py")]
    return sorted(str(path.relative_to(folder)) for path in found)


def run(folder: Path, file: str, way: str, seconds: float) -> Run:
    """Run one file's tests in a process of their own; one that takes too long is stopped, and tells what it has."""
    report = folder / "reports" / way.replace(" ", "-") / f"{file.replace('/', '.')}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_PLUGINS"}
    environment |= SETTINGS | WAYS[way] | {"HF_HUB_CACHE": str(folder / "hub")}
    line = attached([sys.executable, "-m", "pytest", *OPTIONS, f"--junitxml={report}", file])
    with report.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(line, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT,
                                   start_new_session=True)  # fmt: skip
    remark = ""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        remark = f"stopped after {seconds:.0f} s"
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOPPING_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not report.exists():
        return Run(remark=remark or f"ended with {process.returncode} and no report")
    return read(report, remark)


def read(report: Path, remark: str = "") -> Run:
    """Return what a report in JUnit's form tells."""
    endings, reasons = dict[str, str](), dict[str, str]()
    for case in ElementTree.parse(report).iter("testcase"):
        test = f"{case.get('classname')}::{case.get('name')}"
        found = {"failure": FAILED, "error": ERROR, "skipped": SKIPPED}
        told = [(found[child.tag], child) for child in case if child.tag in found]
        for _, child in told:
            reasons[test] = f"{child.get('message') or ''}\n{child.text or ''}"
        if any(child.get("message") == "collection failure" for _, child in told):
            return Run({}, reasons, "cannot be collected")
        # A test that passed and whose fixture failed at its end has two entries.
        endings[test] = max((ending for ending, _ in told), key=ENDINGS.index, default=PASSED)
    return Run(endings, reasons, remark)


def differences(runs: Mapping[str, Run]) -> dict[str, tuple[str, ...]]:
    """Return how each test ended that did not end alike; one that a stopped run did not reach is none."""
    stopped = any(run.remark for run in runs.values())
    tests = {test for run in runs.values() for test in run.endings}
    found = {test: tuple(run.endings.get(test, "missing") for run in runs.values()) for test in sorted(tests)}
    return {
        test: endings for test, endings in found.items()
        if len(set(endings)) > 1 and not (stopped and "missing" in endings)
    }  # fmt: skip


def run_ways(folder: Path, file: str, seconds: float, at_once: int) -> dict[str, Run]:
    """Run a file in every way; once more where the ways differ, and what differs both times is kept as such.

    A test that ends in two ways by itself is no difference: its remark says so.
    """
    with ThreadPoolExecutor(at_once) as pool:
        first = dict(zip(WAYS, pool.map(lambda way: run(folder, file, way, seconds), WAYS), strict=True))
    again = differences(first)
    if not again:
        return first
    with ThreadPoolExecutor(at_once) as pool:
        second = dict(zip(WAYS, pool.map(lambda way: run(folder, file, way, seconds), WAYS), strict=True))
    same = {test for test, endings in differences(second).items() if again.get(test) == endings}
    unsteady = sorted(set(again) - same)
    if not unsteady:
        return first
    remark = f"unsteady: {', '.join(unsteady)}"
    return {
        way: Run({test: ending for test, ending in found.endings.items() if test not in unsteady}, found.reasons,
                 "; ".join(filter(None, (found.remark, remark))))
        for way, found in first.items()
    }  # fmt: skip


def missing_modules(runs: Sequence[Run]) -> list[str]:
    """Return the modules that tests asked for and that are not installed."""
    texts = [text for run in runs for text in run.reasons.values()]
    return sorted({name for text in texts for name in re.findall(r"No module named '([\w.]+)'", text)})


def show(found: Mapping[str, Mapping[str, Run]]) -> bool:
    """Print a table of all files and what differs; return whether anything does."""
    compared = {file: runs for file, runs in found.items() if all(run.endings for run in runs.values())}
    print(f"\n| file: {' / '.join(ENDINGS)} | {' | '.join(WAYS)} | differ | remark |")
    print(f"| :-- |{' --: |' * len(WAYS)} --: | :-- |")
    for file, runs in compared.items():
        remark = "; ".join(sorted({run.remark for run in runs.values() if run.remark}))
        print(f"| {file} | {' | '.join(map(str, runs.values()))} | {len(differences(runs))} | {remark} |")
    totals = [Run({f"{file} {test}": ending for file, runs in compared.items()
                   for test, ending in runs[way].endings.items()}) for way in WAYS]  # fmt: skip
    differing = {f"{file} {test}": endings for file, runs in compared.items()
                 for test, endings in differences(runs).items()}  # fmt: skip
    print(f"| all {len(compared)} files | {' | '.join(map(str, totals))} | {len(differing)} | |")
    for test, endings in differing.items():
        print(f"\n{test}: {', '.join(f'{way}: {ending}' for way, ending in zip(WAYS, endings, strict=True))}")
        file = test.partition(" ")[0]
        for way, run in found[file].items():
            print(f"  {way}: {run.reasons.get(test.partition(' ')[2], '')[:SHOWN]}")
    apart = False
    for file, runs in found.items():
        if file not in compared:
            told = {way: run.remark or "no tests" for way, run in runs.items()}
            alike = len(set(told.values())) == 1
            apart = apart or not alike
            print(f"not comparable: {file}: {told['without'] if alike else told}")
    print("not installed:", ", ".join(missing_modules([run for runs in found.values() for run in runs.values()])))
    return bool(differing) or apart


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="as in vLLM's repository; all of its folders of the plugin's seams")
    parser.add_argument("--seconds", type=float, default=300, help="that a file may take in one way")
    parser.add_argument("--at-once", type=int, default=len(WAYS), help="processes, of one thread each")
    parser.add_argument("--leave", default="", help="expression: files whose path it is found in are not run")
    parser.add_argument("--minutes", type=float, default=180, help="after which no further file is begun")
    options = parser.parse_args(given)
    print(f"vllm {vllm_version()}, pytest {version('pytest')}", flush=True)
    folder = fetch(vllm_version())
    write_hub(folder)
    files = files_in(folder, options.files)
    found, until = dict[str, dict[str, Run]](), time.monotonic() + 60 * options.minutes
    for number, file in enumerate(files):
        began = time.monotonic()
        if began > until or (options.leave and re.search(options.leave, file)):
            print(f"left out: {file}")
            continue
        found[file] = run_ways(folder, file, options.seconds, options.at_once)
        told = " | ".join(f"{way}: {run} {run.remark}" for way, run in found[file].items())
        print(f"{number + 1}/{len(files)} {file} {time.monotonic() - began:.0f} s | {told}", flush=True)
    return show(found)


if __name__ == "__main__":
    sys.exit(main())
