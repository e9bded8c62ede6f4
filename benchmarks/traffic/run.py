"""What `python -m benchmarks traffic` does, from options to files: stages, their records, and what they are kept by."""

import hashlib
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.recordfile import RecordFile, digest
from benchmarks.report import comma_list
from benchmarks.rowfile import write_rows
from benchmarks.traffic.methods import AUTO, FULL, METHODS, Served, TrafficMethod
from benchmarks.traffic.report import TrafficResult, show, write_report
from benchmarks.traffic.requests import Traffic, traffic_of
from benchmarks.traffic.stages import GROWTH, MethodRun, Stage
from benchmarks.window.arms import counted_rows
from emblema.engine.engine import Engine
from emblema.eval.figures import environment
from emblema.eval.progress import steps
from emblema.link.strategies.registry import parse

WARM_UP = 2
"""Requests that are served before, by methods that are thrown away, unless it is said otherwise."""


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """What to measure.

    Attributes:
        label: the model's short name.
        command: how the run is asked for, without the places that it writes to.
        seed: of all traffic.
        stages: in order.
        methods: of `METHODS`; re-prefill is always among them.
    """

    label: str
    command: str
    seed: int
    stages: tuple[Stage, ...]
    methods: tuple[str, ...] = METHODS


def run_traffic(
    options: TrafficOptions, load: Callable[[], Engine], figures: Path, folder: Path, screen: Console
) -> TrafficResult:
    """Measure, print, and write the JSON file and the page after each stage.

    Records lie beside the JSON file: a run that was killed goes on with the stage that it was in.

    Raises:
        EmblemaError: the model cannot be loaded, or a file is not right.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    runs: list[MethodRun] = []
    result = TrafficResult(options.label, options.command, source_of(), environment(), ())
    try:
        with RecordFile(figures.with_suffix(".records.jsonl"), MethodRun) as records, load() as engine:
            for stage in options.stages:
                runs += measured(engine, stage, options, result.source["digest"], records, screen)
                result = replace(result, runs=tuple(runs))
                show(screen, result, stage.name)
                write_json(result, figures)
                write_report(result, folder)
    finally:
        torch.set_num_threads(threads)
    return result


def measured(
    engine: Engine,
    stage: Stage,
    options: TrafficOptions,
    source: str,
    records: RecordFile[MethodRun],
    screen: Console,
) -> list[MethodRun]:
    """Return a stage's records, measured if one of them is lacking: what a method knows cannot be kept half way."""
    names = stage.methods(options.methods)
    about = (engine.adapter.fingerprint, source, asdict(stage), options.seed, list(names))
    keys = {name: digest(*about, name) for name in names}
    if not all(key in records.held for key in keys.values()):
        records.add(measure(engine, stage, options.seed, keys, screen))
    return [records.held[key] for key in keys.values()]


def measure(
    engine: Engine, stage: Stage, seed: int, keys: dict[str, str], screen: Console, warm_up: int = WARM_UP
) -> list[MethodRun]:
    """Serve a stage's traffic: every request by every method in turn, another one first each time.

    Args:
        keys: of the records, by method.
        warm_up: requests that are served before, by methods that are thrown away.
    """
    traffic, names = traffic_of(stage.shape, seed), tuple(keys)
    growth = stage.name.startswith(GROWTH)
    before = os.getloadavg()[0]
    served: dict[str, list[Served]] = {name: [] for name in names}
    with counted_rows(engine.adapter) as counter:
        for name in names if warm_up else ():
            _serve_some(TrafficMethod(name, engine, traffic, counter), traffic, warm_up)
        methods = {name: TrafficMethod(name, engine, traffic, counter, growth and name == AUTO) for name in names}
        answers: dict[int, str] = {}
        added = {name: method.engine.store.statistics.bytes for name, method in methods.items()}
        with steps(screen, f"{stage.name}: {len(traffic.requests)} requests", len(traffic.requests)) as advance:
            for index, request in enumerate(traffic.requests):
                first = index % len(names)
                for name in (*names[first:], *names[:first]):
                    served[name].append(methods[name].serve(request, answers))
                # Every method is given re-prefill's answers as what was said before, so that all see the same prompt.
                answers[index] = served[FULL][-1].text
                advance()
        pieces = {name: method.pieces for name, method in methods.items() if growth and name == AUTO}
        for method in methods.values():
            method.close()
    load = (before, os.getloadavg()[0])
    return [
        replace(
            _record(keys[name], stage, name, traffic, own, served[FULL], added[name], load),
            learnt=tuple(answer.learnt for answer in own) if name in pieces else (),
            pieces=pieces.get(name, ()),
        )
        for name, own in served.items()
    ]


def _serve_some(method: TrafficMethod, traffic: Traffic, count: int) -> None:
    answers: dict[int, str] = {}
    for index, request in enumerate(traffic.requests[:count]):
        answers[index] = method.serve(request, answers).text
    method.close()


def _record(
    key: str,
    stage: Stage,
    name: str,
    traffic: Traffic,
    served: Sequence[Served],
    full: Sequence[Served],
    added: int,
    load: tuple[float, float],
) -> MethodRun:
    return MethodRun(
        key=key,
        stage=stage,
        method=name,
        load=load,
        added=added,
        group=tuple(request.group for request in traffic.requests) if name == FULL else (),
        where=tuple(request.where for request in traffic.requests) if name == FULL else (),
        prompt=tuple(own.prompt for own in served) if name == FULL else (),
        computed=tuple(own.computed for own in served),
        ran=tuple(round(own.ran, 1) for own in served),
        ttft=tuple(round(own.ttft, 5) for own in served),
        wall=tuple(round(own.wall, 5) for own in served),
        processor=tuple(round(own.processor, 5) for own in served),
        kept=tuple(own.kept for own in served),
        margin=tuple(None if own.margin is None else round(own.margin, 4) for own in served),
        fell_back=tuple(int(own.fell_back) for own in served),
        agrees=tuple(int(own.token == other.token) for own, other in zip(served, full, strict=True)),
        right=tuple(
            int(own.text.strip() == request.answer) for own, request in zip(served, traffic.requests, strict=True)
        ),
        lane=tuple(own.lane for own in served) if name == AUTO else (),
    )


def methods_of(text: str | None) -> tuple[str, ...]:
    """Return the methods of a list with commas, re-prefill first; all of `METHODS` without a list.

    Raises:
        StrategyError: one of them is no strategy.
    """
    named = METHODS if text is None else tuple(comma_list(text))
    for name in named:
        parse(name)
    return tuple(dict.fromkeys((FULL, *named)))


def source_of() -> dict[str, str]:
    """Return which code is measured: a digest of the package's files, and the commit where there is one."""
    package = Path(str(files("emblema")))
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return {"digest": found.hexdigest()[:12], "commit": _commit(package)}


def _commit(package: Path) -> str:
    command = ["git", "-C", str(package), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def write_json(result: TrafficResult, path: Path) -> Path:
    """Write every record; returns the file's path."""
    rows = [{name: value for name, value in asdict(run).items() if name != "key"} for run in result.runs]
    head: dict[str, Any] = {"model": result.model, "command": result.command, "source": result.source}
    return write_rows({**head, "environment": result.environment, "rows": rows}, path)
