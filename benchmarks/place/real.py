"""Real replicas on this machine: the same trace as the simulator's, and what became of it."""

import io
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
from PIL import Image

from benchmarks.place.costs import TierCosts
from benchmarks.place.policies import make_policies
from benchmarks.place.simulator import ClusterOptions, SimulatedCluster
from benchmarks.place.trace import TraceOptions, make_trace
from emblema.errors import EmblemaError
from emblema.scale.placement import RoutedRequest

DRAWS = 16
"""Times that the simulator runs a trace."""
QUESTION = "on which land does the moon stand ?"
PICTURE_BYTES = 2_200_000
"""Of a picture of 448 pixels on the bundled model: rows, embeddings, and a little more."""
START_SECONDS = 300.0
"""Until replicas answer, on a machine that may be busy."""
_LINE = re.compile(r"replica (\w+) of cluster \S+ answers, process (\d+)")


@dataclass(frozen=True, slots=True)
class RealOptions:
    """What is run.

    Attributes:
        replicas: processes.
        pictures: that are uploaded; of `side` pixels.
        held: pictures that one replica's memory holds.
        requests: of the trace; the second half is counted.
        seconds_apart: of two requests, on average.
    """

    replicas: int
    pictures: int = 90
    side: int = 448
    held: int = 24
    requests: int = 160
    seconds_apart: float = 0.6


class RunningReplicas:
    """`emblema serve --replicas` in processes of its own."""

    def __init__(self, folder: Path, port: int, replicas: int, policy: str, *options: str) -> None:
        self.address, self.lines = f"http://127.0.0.1:{port}", list[str]()
        command = [sys.executable, "-m", "emblema.cli", "serve", "--port", str(port), "--store", str(folder)]
        self.process = subprocess.Popen(
            [*command, "--replicas", str(replicas), "--policy", policy, *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"},
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()
        self._await(replicas)

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    def _await(self, replicas: int) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            if len(self.processes) >= replicas:
                with suppress(httpx.HTTPError):
                    if httpx.get(f"{self.address}/v1/models", timeout=10).status_code == 200:
                        return
            time.sleep(0.2)
        self.close()
        raise EmblemaError("the replicas did not start: " + "".join(self.lines[-20:]))

    @property
    def processes(self) -> dict[str, int]:
        """Process ids by replica, those that have ended too, the latest last."""
        found = (_LINE.search(line) for line in list(self.lines))
        return {match[1]: int(match[2]) for match in found if match is not None}

    def close(self) -> None:
        """End all of them."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextmanager
def running(folder: Path, port: int, replicas: int, policy: str, *options: str) -> Iterator[RunningReplicas]:
    """Run replicas until the block ends."""
    started = RunningReplicas(folder, port, replicas, policy, *options)
    try:
        yield started
    finally:
        started.close()


def picture(number: int, side: int) -> bytes:
    """Return a picture of coarse noise as PNG."""
    pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def upload(client: httpx.Client, number: int, side: int) -> str:
    """Upload a picture and wait until it is prefilled; return its id."""
    answer = client.post("/v1/files", files={"file": (f"{number}.png", picture(number, side))})
    answer.raise_for_status()
    id = str(answer.json()["id"])
    while (found := client.get(f"/v1/files/{id}").json())["status"] == "uploaded":
        time.sleep(0.02)
    if found["status"] != "processed":
        raise EmblemaError(f"a picture could not be read: {found['status_details']}")
    return id


def body_of(ids: Sequence[str], strategy: str = "blind", tokens: int = 1) -> dict[str, Any]:
    """Return a chat about files."""
    parts = [{"type": "file", "file": {"file_id": id}} for id in ids]
    content = [*parts, {"type": "text", "text": QUESTION}]
    return {"model": "reference", "max_tokens": tokens, "strategy": strategy,
            "messages": [{"role": "user", "content": content}]}  # fmt: skip


def loads_of(client: httpx.Client, replicas: int) -> dict[str, float]:
    """Return rows' loads from disk by replica, asked until each has answered."""
    found: dict[str, float] = {}
    for _ in range(2_000):
        answer = client.get("/metrics")
        text = re.search(r'emblema_store_events_total\{event="loads"\} (\S+)', answer.text)
        if answer.status_code == 200 and text is not None:
            found[answer.headers["x-emblema-replica"]] = float(text[1])
        if len(found) >= replicas:
            return found
    raise EmblemaError(f"only {len(found)} of {replicas} replicas tell their metrics")


@dataclass(frozen=True, slots=True)
class RealOutcome:
    """What became of the second half of a trace.

    Attributes:
        device: share of pictures whose rows were in memory.
        simulated, least, most: the same by the simulator, over `DRAWS` draws of the policy.
        loads: rows of pictures that were read from the shared folder.
        p50, p99: seconds from sending a request to its answer of one token.
        failures: requests without an answer.
        spread: requests of the busiest replica over the average.
        load: average load of the machine while it ran.
    """

    policy: str
    replicas: int
    device: float
    simulated: float
    least: float
    most: float
    loads: float
    p50: float
    p99: float
    failures: int
    spread: float
    load: float


REAL_POLICIES = ("set-affinity", "session-hash", "two-choices")


def measure(options: RealOptions, seed: int, policies: Sequence[str] = REAL_POLICIES) -> list[RealOutcome]:
    """Serve a trace with real replicas under each policy, all in one go: their requests take turns.

    So whatever else the machine does, it does to all of them.
    """
    trace, half = trace_of(options, seed), options.requests // 2
    with ExitStack() as stack:
        clusters = [stack.enter_context(_cluster(options, policy)) for policy in policies]
        for cluster in clusters:
            cluster.upload(options)
        _send_in_turns(clusters, trace[:half], options.seconds_apart, seed)
        before = [cluster.loads(options.replicas) for cluster in clusters]
        answers = _send_in_turns(clusters, trace[half:], options.seconds_apart, seed + 1)
        loads = [cluster.loads(options.replicas) - first for cluster, first in zip(clusters, before, strict=True)]
    pictures = sum(len(request.digests) for request in trace[half:])
    return [
        _outcome(options, policy, seed, loaded, pictures, found)
        for policy, loaded, found in zip(policies, loads, answers, strict=True)
    ]


def _outcome(
    options: RealOptions,
    policy: str,
    seed: int,
    loads: float,
    pictures: int,
    answers: Sequence[tuple[float, str | None]],
) -> RealOutcome:
    times = np.array([seconds for seconds, replica in answers if replica is not None])
    counts = [sum(replica == name for _, replica in answers) for name in {name for _, name in answers if name}]
    return RealOutcome(
        policy, options.replicas, 1 - loads / pictures, *simulated_hits(options, policy, seed), loads,
        float(np.percentile(times, 50)), float(np.percentile(times, 99)),
        sum(replica is None for _, replica in answers), max(counts) * options.replicas / sum(counts),
        os.getloadavg()[0],
    )  # fmt: skip


class _RealCluster:
    """Replicas that run, and the pictures that they were sent."""

    def __init__(self, client: httpx.Client) -> None:
        self.client, self.ids = client, list[str]()

    def upload(self, options: RealOptions) -> None:
        self.ids = [upload(self.client, number, options.side) for number in range(options.pictures)]

    def loads(self, replicas: int) -> float:
        return sum(loads_of(self.client, replicas).values())

    def ask(self, request: RoutedRequest) -> tuple[float, str | None]:
        """Return a request's seconds and replica, None where there was no answer."""
        body = body_of([self.ids[number] for number in request.digests])
        began = time.perf_counter()
        try:
            headers = {"x-session-id": str(request.session)}
            answer = self.client.post("/v1/chat/completions", json=body, headers=headers)
        except httpx.HTTPError:
            return time.perf_counter() - began, None
        good = answer.status_code == 200
        return time.perf_counter() - began, answer.headers["x-emblema-replica"] if good else None


@contextmanager
def _cluster(options: RealOptions, policy: str) -> Iterator[_RealCluster]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    memory = f"device_bytes={options.held * PICTURE_BYTES}"
    with (
        TemporaryDirectory() as folder,
        running(Path(folder), port, options.replicas, policy, "--set", memory) as replicas,
        httpx.Client(base_url=replicas.address, timeout=120) as client,
    ):
        yield _RealCluster(client)


def trace_of(options: RealOptions, seed: int) -> list[RoutedRequest]:
    """Return the trace, whose digests are numbers of pictures."""
    return make_trace(TraceOptions(options.pictures, options.requests, open=6 * options.replicas), seed)


def simulated_hits(options: RealOptions, policy: str, seed: int, draws: int = DRAWS) -> tuple[float, float, float]:
    """Return the share of pictures in memory that the simulator says for the same trace: the mean, least and most.

    A policy draws where replicas are equal, and what it drew for the first pictures stays: so over several draws.
    """
    # Times matter little for hits: what is sent before is answered before.
    costs = TierCosts("real", 0.004, 0.02, 0.08, 1, "")
    cluster = ClusterOptions(options.replicas, options.held, 1, seconds_apart=options.seconds_apart)
    names = {"set-affinity": "set affinity", "session-hash": "session hash", "two-choices": "two choices"}
    # All pictures were uploaded before, one by one.
    uploads = [RoutedRequest((number,)) for number in range(options.pictures)]
    trace = trace_of(options, seed)
    hits = []
    for draw in range(draws):
        placement = make_policies(seed + draw, 10**6, options.held)[names[policy]]
        counted = len(uploads) + len(trace) // 2
        hits.append(
            SimulatedCluster(cluster, costs, seed).run([*uploads, *trace], placement, counted=counted).hits["device"]
        )
    return float(np.mean(hits)), min(hits), max(hits)


def _send_in_turns(
    clusters: Sequence[_RealCluster], requests: Sequence[RoutedRequest], apart: float, seed: int
) -> list[list[tuple[float, str | None]]]:
    """Send every request to every cluster, one cluster after another at random moments; return their answers."""
    rng, pending = random.Random(seed), [[] for _ in clusters]  # type: ignore[var-annotated]
    with ThreadPoolExecutor(64) as threads:
        for request in requests:
            for number in rng.sample(range(len(clusters)), len(clusters)):
                time.sleep(rng.expovariate(len(clusters) / apart))
                pending[number].append(threads.submit(clusters[number].ask, request))
        return [[future.result() for future in futures] for futures in pending]
