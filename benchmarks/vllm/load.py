"""Load by `vllm bench serve`: conversations over the same ten pictures, each in an order of its own, at a rate.

As in MMDU, a turn adds pictures and a question to all turns before it. An exact prefix serves the later turns of one
conversation and nothing of another, as no two begin alike; linked pictures serve both. Answers of earlier turns are
written in as given, so that every strategy sees the same rows. The generator sends each turn as one user's message with
texts and pictures in between, at moments of its own (a Poisson process), whether or not the turn before was answered.

`python -m benchmarks.vllm.load` is that generator, where vLLM is installed under another name than its own and its
command does not start.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from PIL import Image

from benchmarks.tasks.page_tasks import two_page
from benchmarks.vllm.client import Client, content_of
from benchmarks.vllm.measure import PLAIN, noise_pictures, pages_of, ready, texts_of
from emblema.errors import EmblemaError

LONGEST_SECONDS = 3600.0
PICTURES = 10
TURNS = (4, 2, 2, 2)
"""How many pictures each turn adds."""
TurnPart = str | Image.Image


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """One request: everything said so far, and the question.

    Attributes:
        parts: texts and pictures in order.
        place: which turn of its conversation it is.
        answer: the right answer; empty where the pictures are noise.
    """

    parts: tuple[TurnPart, ...]
    place: int
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Conversations:
    """Turns in order, and the pictures that they are about."""

    turns: tuple[ConversationTurn, ...]
    pool: tuple[Image.Image, ...]


def of_noise(count: int, side: int, seed: int) -> Conversations:
    """Return conversations over pictures of noise, `side` pixels wide: for timing."""
    rng = numpy.random.default_rng(seed)
    pool = noise_pictures(rng, PICTURES, side)
    question = "which land does the tent stand on ?"
    turns: list[ConversationTurn] = []
    for _ in range(count):
        order = iter([pool[place] for place in rng.permutation(PICTURES)])
        parts: list[TurnPart] = []
        for place, number in enumerate(TURNS):
            shown = [part for _ in range(number) for part in (next(order), "and then")]
            parts += ["look at these pages", *shown, question]
            turns.append(ConversationTurn(tuple(parts), place))
            parts.append("lake")
    return Conversations(tuple(turns), tuple(pool))


def of_pages(count: int, seed: int, shuffle: int = 0) -> Conversations:
    """Return conversations over five pairs of a legend and a map; each turn asks about the pair that was shown last.

    Args:
        count: of conversations.
        seed: of the pages.
        shuffle: with the seed, of the orders in which they are shown.
    """
    rng = numpy.random.default_rng([seed, shuffle] if shuffle else seed)
    items = [two_page(seed, number, "emblema") for number in range(PICTURES // 2)]
    turns: list[ConversationTurn] = []
    for _ in range(count):
        order = [int(place) for place in rng.permutation(len(items))]
        parts: list[TurnPart] = []
        shown = 0
        for place, number in enumerate(TURNS):
            for item in order[shown : shown + number // 2]:
                parts += pages_of(items[item])
            shown += number // 2
            # The bundled models were trained on the pair that comes last.
            asked = items[order[shown - 1]]
            index = int(rng.integers(len(asked.questions)))
            answer = asked.questions[index].answer
            parts += texts_of(asked, index)
            turns.append(ConversationTurn(tuple(parts), place, answer))
            parts.append(answer)
    return Conversations(tuple(turns), tuple(page for item in items for page in pages_of(item)))


def first_turns(turns: Sequence[ConversationTurn], values: Sequence[float], *, later: bool) -> list[float]:
    """Return the values of first turns, or of all others."""
    return [value for turn, value in zip(turns, values, strict=True) if (turn.place > 0) == later]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A strategy at one rate.

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
    talks: Conversations,
    strategies: Sequence[str],
    rates: Sequence[float | None],
    tokens: int,
    folder: Path,
    notify: Callable[[LoadResult], None] = lambda result: None,
) -> list[LoadResult]:
    """Send the turns under each strategy at each rate; every picture has been seen before.

    Strategies and rates have a tenant each, so that none answers from what another left.

    Args:
        client: of a server with the plugin and vLLM's prefix cache.
        tokenizer: folder of the model's.
        tokens: of an answer, at most.
        folder: for the prompts and the generator's results.
        notify: called with each as it comes.

    Raises:
        EmblemaError: the generator failed, or not every turn was answered.
    """
    prompts = write_prompts([turn.parts for turn in talks.turns], folder)
    found: list[LoadResult] = []
    for rate in rates:
        plain: list[str] = []
        for name in (PLAIN, *strategies):
            salt = f"{name} at {rate}"
            if name != PLAIN:
                ready(client, content_of([*talks.pool, "which land ?"]), "blind", salt)
            own = {"strategy": name, "capture": name == "auto"}
            extra = {"kv_transfer_params": {"emblema": own}, "cache_salt": salt}
            line = generator_command(client.address, client.model, tokenizer, prompts, len(talks.turns), tokens, rate)
            before = server_counts(client)
            line += ["--extra-body", json.dumps(extra)]
            output = run_generator(line, len(talks.turns), folder / "result.json")
            after = server_counts(client)
            plain = plain or output["generated_texts"]
            moved = {key: int(after.get(key, 0) - before.get(key, 0)) for key in after}
            found.append(_result(talks, name, rate, output, plain, moved))
            notify(found[-1])
    return found


def write_prompts(prompts: Sequence[Sequence[TurnPart]], folder: Path) -> Path:
    """Write what the generator sends, and the pictures that it reads, into a folder; returns the file's path.

    Args:
        prompts: texts and pictures in order, of each request.
        folder: made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[int, str] = {}
    path = folder / "prompts.jsonl"
    with path.open("w") as file:
        for prompt in prompts:
            parts: list[dict[str, str]] = []
            for part in prompt:
                if isinstance(part, str):
                    parts.append({"type": "text", "text": part})
                    continue
                if id(part) not in names:
                    names[id(part)] = str(folder / f"picture-{len(names)}.png")
                    part.convert("RGB").save(names[id(part)])
                parts.append({"type": "image", "image": names[id(part)]})
            file.write(json.dumps({"content": parts}) + "\n")
    return path


def generator_command(
    address: str,
    model: str,
    tokenizer: Path,
    prompts: Path,
    count: int,
    tokens: int,
    rate: float | None = None,
    concurrency: int | None = None,
) -> list[str]:
    """Return the generator's command line; what is sent besides and the result file are left out.

    Args:
        address, model: the server's, and what it calls the model.
        tokenizer: folder of the model's.
        prompts: see `write_prompts`; `count`: how many.
        tokens: of an answer, at most.
        rate: requests a second; all at once without.
        concurrency: requests under way at most: the next waits for an answer.
    """
    options = {
        "--backend": "openai-chat", "--base-url": address, "--endpoint": "/v1/chat/completions", "--model": model,
        "--tokenizer": tokenizer, "--dataset-name": "custom_image", "--dataset-path": prompts, "--num-prompts": count,
        "--custom-output-len": tokens, "--temperature": 0, "--request-rate": "inf" if rate is None else rate,
        "--seed": 0,
    }  # fmt: skip
    if concurrency is not None:
        options["--max-concurrency"] = concurrency
    flags = ("--custom-ensure-client-side-data", "--disable-shuffle", "--disable-tqdm")
    pairs = (str(word) for pair in options.items() for word in pair)
    return [sys.executable, "-m", "benchmarks.vllm.load", *pairs, *flags, "--save-result", "--save-detailed"]


def run_generator(
    line: Sequence[str], count: int, path: Path, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run the generator; return its result file.

    Args:
        line: see `generator_command`.
        count: of the requests.
        path: for its result.
        environment: beside this process's own.

    Raises:
        EmblemaError: it failed, or not every request was answered.
    """
    path.unlink(missing_ok=True)
    full = [*line, "--result-filename", str(path)]
    given = os.environ | dict(environment or {})
    done = subprocess.run(full, capture_output=True, text=True, timeout=LONGEST_SECONDS, env=given)
    if done.returncode or not path.exists():
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-12:])
        raise EmblemaError(f"vllm bench serve failed; the end of its output:\n{tail}")
    output: dict[str, Any] = json.loads(path.read_text())
    if output["completed"] != count:
        wrong = next((line for line in output["errors"] if line), "")
        raise EmblemaError(f"{count - output['completed']} of {count} requests were not answered: {wrong[:400]}")
    return output


def server_counts(client: Client) -> dict[str, float]:
    """Return the server's counters of linked rows and of its prefix cache."""
    with urllib.request.urlopen(f"{client.address}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    pattern = re.compile(r"vllm:(emblema_\w+|prefix_cache_hits)_total(?:\{.*\})? (\S+)")
    found: dict[str, float] = {}
    for match in filter(None, map(pattern.fullmatch, lines)):
        found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def _result(
    talks: Conversations,
    name: str,
    rate: float | None,
    output: dict[str, Any],
    plain: Sequence[str],
    moved: dict[str, int],
) -> LoadResult:
    seconds, texts = output["ttfts"], [text.strip() for text in output["generated_texts"]]
    answers = [turn.answer for turn in talks.turns]
    return LoadResult(
        name,
        rate,
        len(texts),
        output["request_throughput"],
        statistics.median(first_turns(talks.turns, seconds, later=False)),
        statistics.median(first_turns(talks.turns, seconds, later=True)),
        sorted(seconds)[max(0, -(-95 * len(seconds) // 100) - 1)],
        sum(text == other.strip() for text, other in zip(texts, plain, strict=True)),
        sum(text == answer for text, answer in zip(texts, answers, strict=True)) if all(answers) else None,
        output["total_input_tokens"],
        moved.get("emblema_linked_tokens", 0),
        moved.get("emblema_linked_bytes", 0),
        moved.get("prefix_cache_hits", 0),
    )


def main() -> None:
    """Run the generator with this process's arguments."""
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as run
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm bench serve")
    add_cli_args(parser)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
