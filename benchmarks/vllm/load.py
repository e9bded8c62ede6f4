"""Load by `vllm bench serve`: prompts of conversations at a rate, with the plugin's strategies and without any.

The generator sends each turn as one user's message with texts and pictures in between, at moments of its own (a Poisson
process), whether or not the turn before was answered.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.vllm.client import Client, content_of
from benchmarks.vllm.conversations import Talks, first_turns
from benchmarks.vllm.measure import PLAIN, ready
from emblema.errors import EmblemaError

LONGEST_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a strategy came to at one rate.

    Attributes:
        strategy: `full` is vLLM with its prefix cache alone; the others have it too.
        rate: turns a second that were sent; None for all at once.
        turns: how many.
        turns_a_second: that were answered.
        first_turn, later_turns: median seconds to the first token.
        slowest: the 95th percentile of all turns.
        agreeing: answers that are those of `full` at the same rate.
        right: answers that are the right ones; None for pictures of noise.
        prompt_tokens: of all turns.
        linked_tokens, kv_bytes: rows taken from the store, and their bytes, as the server counts them.
        prefix_tokens: rows from vLLM's own prefix cache.
    """

    strategy: str
    rate: float | None
    turns: int
    turns_a_second: float
    first_turn: float
    later_turns: float
    slowest: float
    agreeing: int
    right: int | None
    prompt_tokens: int
    linked_tokens: int
    kv_bytes: int
    prefix_tokens: int


def load(
    client: Client,
    tokenizer: Path,
    talks: Talks,
    strategies: Sequence[str],
    rates: Sequence[float | None],
    tokens: int,
    folder: Path,
    notify: Callable[[Loaded], None] = lambda one: None,
) -> list[Loaded]:
    """Send the turns under each strategy at each rate; every picture has been seen before.

    Strategies and rates have a tenant each, so that none answers from what another left behind.

    Args:
        client: of a server with the plugin and vLLM's prefix cache.
        tokenizer: folder of the model's.
        tokens: of an answer, at most.
        folder: for the prompts and the generator's results.
        notify: told of each as it comes.

    Raises:
        EmblemaError: the generator failed, or not every turn was answered.
    """
    prompts = _written(talks, folder)
    found: list[Loaded] = []
    for rate in rates:
        plain: list[str] = []
        for name in (PLAIN, *strategies):
            salt = f"{name} at {rate}"
            if name != PLAIN:
                ready(client, content_of([*talks.pool, "which land ?"]), "blind", salt)
            before = counted(client)
            told = _run(client, tokenizer, prompts, name, salt, rate, len(talks.turns), tokens, folder)
            after = counted(client)
            plain = plain or told["generated_texts"]
            moved = {key: int(after.get(key, 0) - before.get(key, 0)) for key in after}
            found.append(_summed(talks, name, rate, told, plain, moved))
            notify(found[-1])
    return found


def _written(talks: Talks, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[int, str] = {}
    for number, picture in enumerate(talks.pool):
        names[id(picture)] = str(folder / f"picture-{number}.png")
        picture.convert("RGB").save(names[id(picture)])
    path = folder / "prompts.jsonl"
    with path.open("w") as file:
        for turn in talks.turns:
            parts = [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": names[id(part)]}
                for part in turn.parts
            ]
            file.write(json.dumps({"content": parts}) + "\n")
    return path


def _run(
    client: Client,
    tokenizer: Path,
    prompts: Path,
    strategy: str,
    salt: str,
    rate: float | None,
    count: int,
    tokens: int,
    folder: Path,
) -> dict[str, Any]:
    """The generator's result file."""
    own = {"kv_transfer_params": {"emblema": {"strategy": strategy, "capture": strategy == "auto"}}, "cache_salt": salt}
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    line = [sys.executable, "-m", "benchmarks.vllm.generator", "--backend", "openai-chat", "--base-url"]
    line += [client.address, "--endpoint", "/v1/chat/completions", "--model", client.model]
    line += ["--tokenizer", str(tokenizer), "--dataset-name", "custom_image", "--dataset-path", str(prompts)]
    line += ["--custom-ensure-client-side-data", "--disable-shuffle", "--num-prompts", str(count)]
    line += ["--custom-output-len", str(tokens), "--temperature", "0", "--extra-body", json.dumps(own)]
    line += ["--request-rate", "inf" if rate is None else str(rate), "--seed", "0", "--disable-tqdm"]
    line += ["--save-result", "--save-detailed", "--result-filename", str(result)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=LONGEST_SECONDS, env=os.environ)
    if done.returncode or not result.exists():
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-12:])
        raise EmblemaError(f"vllm bench serve failed; the end of what it said:\n{tail}")
    told: dict[str, Any] = json.loads(result.read_text())
    if told["completed"] != count:
        wrong = next((line for line in told["errors"] if line), "")
        raise EmblemaError(f"{count - told['completed']} of {count} turns were not answered: {wrong[:400]}")
    return told


def counted(client: Client) -> dict[str, float]:
    """The server's counters of linked rows and of its prefix cache."""
    with urllib.request.urlopen(f"{client.address}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    pattern = re.compile(r"vllm:(emblema_\w+|prefix_cache_hits)_total(?:\{.*\})? (\S+)")
    found: dict[str, float] = {}
    for match in filter(None, map(pattern.fullmatch, lines)):
        found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def _summed(
    talks: Talks,
    name: str,
    rate: float | None,
    told: dict[str, Any],
    plain: Sequence[str],
    moved: dict[str, int],
) -> Loaded:
    seconds, texts = told["ttfts"], [text.strip() for text in told["generated_texts"]]
    answers = [turn.answer for turn in talks.turns]
    return Loaded(
        name,
        rate,
        len(texts),
        told["request_throughput"],
        statistics.median(first_turns(talks.turns, seconds, later=False)),
        statistics.median(first_turns(talks.turns, seconds, later=True)),
        sorted(seconds)[max(0, -(-95 * len(seconds) // 100) - 1)],
        sum(text == other.strip() for text, other in zip(texts, plain, strict=True)),
        sum(text == answer for text, answer in zip(texts, answers, strict=True)) if all(answers) else None,
        told["total_input_tokens"],
        moved.get("emblema_linked_tokens", 0),
        moved.get("emblema_linked_bytes", 0),
        moved.get("prefix_cache_hits", 0),
    )
