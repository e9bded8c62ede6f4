"""The whole bench of the plugin: servers one after the other, and what was measured of each."""

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.vllm.client import Client
from benchmarks.vllm.load import Conversations, LoadResult, load, of_noise, of_pages
from benchmarks.vllm.measure import agreement, first_tokens, many_clients
from benchmarks.vllm.readings import PLAIN, engine_options, time_readings
from benchmarks.vllm.saturation import AUTO, IDLE, TRAFFIC, WITHOUT, rounds_of, saturate
from benchmarks.vllm.server import random_model
from emblema.models.load import bundled_folder

Serve = Callable[[str, Path | None, str, Sequence[str], bool], AbstractContextManager[str]]
"""Runs a server of a model with a store (None: without the plugin), a strategy, more options, and whether `auto` weighs
what linking costs, while a block runs; yields its address."""
AGREEING = ("auto", "blind")
TIMED = ("blind", "mpic-32")
TALKING = ("auto", "blind", "mpic-32")
SIDE = 448
ANSWER = 8


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What is measured; a zero leaves a part out.

    Attributes:
        questions: two-page questions for agreement.
        rounds: of first tokens.
        shape: of the random model that is timed, see `server.SHAPES`.
        pictures: in the timed prompt, of 256 tokens each.
        dtype: of the timed model.
        clients: at once.
        talks: conversations over ten pictures.
        rates: turns a second of them; None for all at once.
        saturation: rounds of requests that are sent at once, `clients` each, beside a server without the plugin.
        readings: rounds of first tokens of prompts that are read, on `reference` and the random model.
        seed: of everything drawn.
    """

    questions: int = 200
    rounds: int = 5
    shape: str = "137m"
    pictures: int = 4
    dtype: str = "bfloat16"
    clients: int = 32
    talks: int = 4
    rates: tuple[float | None, ...] = (0.5, None)
    saturation: int = 5
    readings: int = 5
    seed: int = 0


class VllmBench:
    """All parts, in a folder of their own.

    Args:
        serve: starts servers.
        device: what they run on, in words.
        say: called with every figure in words, as it comes.
    """

    def __init__(
        self, options: VllmOptions, folder: Path, serve: Serve, device: str, say: Callable[[str], None]
    ) -> None:
        self.options, self.folder, self.serve, self.device, self.say = options, folder, serve, device, say

    def run(self) -> dict[str, Any]:
        """Measure everything that is asked for; return it as plain data.

        Raises:
            EmblemaError: a server did not start, refused, or did not link.
        """
        options = self.options
        found: dict[str, Any] = {"device": self.device, "machine": platform.machine(), "settings": asdict(options)}
        self.say(f"device: {self.device}")
        if options.questions or options.clients:
            found |= self._answers()
        if options.rounds:
            found |= self._first_tokens()
        if options.talks:
            found |= self._talks()
        if options.saturation:
            found |= self._saturation()
        if options.readings:
            found |= self._readings()
        return found

    @contextmanager
    def _serving(
        self, model: str, name: str, strategy: str, more: Sequence[str], weigh: bool = True
    ) -> Iterator[Client]:
        with self.serve(model, self.folder / name, strategy, more, weigh) as address:
            yield Client(address, model)

    def _answers(self) -> dict[str, Any]:
        options, found = self.options, dict[str, Any]()
        # Answers over linked pictures are what is measured, whether linking such small ones pays or not.
        with self._serving("reference", "agreement", "auto", _BARE, weigh=False) as client:
            if options.questions:
                results = agreement(client, AGREEING, options.questions, options.seed)
                found["agreement"] = [asdict(result) for result in results]
                for result in results:
                    self.say(
                        f"{result.strategy}: {result.agreeing} of {result.questions} as plain prefill "
                        f"[{result.low:.3f}, {result.high:.3f}], right {result.right} (plain {result.plain_right}), "
                        f"{result.linked_rows / max(1, result.picture_rows):.3f} of the picture rows linked"
                    )
            if options.clients:
                found["clients"] = many_clients(client, "auto", options.clients, 4 * options.clients, options.seed)
                self.say(f"clients: {found['clients']}")
        return found

    def _first_tokens(self) -> dict[str, Any]:
        options = self.options
        folder, parameters = self._timed()
        more = ["--dtype", options.dtype, "--load-format", "dummy", "--no-enable-prefix-caching"]
        with self._serving(str(folder), "timed", "blind", more) as client:
            arms = first_tokens(client, TIMED, options.pictures, SIDE, options.rounds)
        for arm in arms:
            self.say(f"{arm.strategy}: {arm.median:.3f} s to the first token, {arm.linked_tokens} linked")
        data = [asdict(arm) for arm in arms]
        return {"first_tokens": {"parameters": parameters, "pictures": options.pictures, "arms": data}}

    def _talks(self) -> dict[str, Any]:
        options = self.options
        folder, parameters = self._timed()
        more = ["--dtype", options.dtype, "--load-format", "dummy"]
        with self._serving(str(folder), "talks", "blind", more) as client:
            noise = of_noise(options.talks, SIDE, options.seed)
            held = self._load(client, folder, noise, TIMED, 1)
        with self._serving("reference", "pages", "auto", ["--dtype", "float32"]) as client:
            pages = of_pages(options.talks, options.seed)
            answers = self._load(client, bundled_folder("reference"), pages, TALKING, ANSWER)
        return {"talks": {"parameters": parameters, "held": held}, "answers": {"held": answers}}

    def _saturation(self) -> dict[str, Any]:
        options, model, more = self.options, "reference", ["--dtype", "float32"]
        traffic = {
            kind: rounds_of(kind, options.saturation + 1, options.clients or 32, options.seed) for kind in TRAFFIC
        }
        with (
            self.serve(model, None, "", more, True) as plain,
            self.serve(model, self.folder / "saturation", "auto", more, True) as linking,
        ):
            clients = {WITHOUT: Client(plain, model), IDLE: Client(linking, model), AUTO: Client(linking, model)}
            # Each kind has tenants of its own, so that it finds nothing of the others.
            found = [
                asdict(result)
                for kind, rounds in traffic.items()
                for result in saturate(clients, kind, rounds, ANSWER, self.say)
            ]
        return {"saturation": found}

    def _readings(self) -> dict[str, Any]:
        options = self.options
        timed, parameters = self._timed()
        models = {"reference": bundled_folder("reference"), f"random, {parameters / 1e6:.0f} M": timed}
        found: dict[str, Any] = {}
        for name, folder in models.items():
            engine = engine_options(options.dtype if folder == timed else "float32", folder == timed)
            store = self.folder / f"readings-{len(found)}"
            results = time_readings(folder, engine, options.readings, store, options.seed)
            plain = {result.pictures: result.median for result in results if result.strategy == PLAIN}
            for result in results:
                self.say(
                    f"{name}, {result.pictures} pictures, {result.strategy}: {result.median:.3f} s to the first token, "
                    f"{result.median / plain[result.pictures]:.3f} of plain, {result.rows:.0f} rows in "
                    f"{result.requests:.0f} requests"
                )
            found[name] = [asdict(result) for result in results]
        return {"readings": found}

    def _load(
        self, client: Client, tokenizer: Path, talks: Conversations, strategies: Sequence[str], tokens: int
    ) -> list[dict[str, Any]]:
        """Send conversations at every rate; return the results as plain data."""

        def notify(result: LoadResult) -> None:
            self.say(
                f"{result.strategy} at {result.rate or 'once'}: {result.turns_a_second:.2f} turns a second, first turn "
                f"{result.first_turn:.2f} s, later {result.later_turns:.2f} s, {result.linked_tokens} of "
                f"{result.prompt_tokens} tokens linked, {result.kv_bytes / 1e6:.0f} MB, {result.agreeing} of "
                f"{result.turns} as plain"
            )

        place = self.folder / f"prompts-{tokens}"
        results = load(client, tokenizer, talks, strategies, self.options.rates, tokens, place, notify)
        return [asdict(result) for result in results]

    def _timed(self) -> tuple[Path, int]:
        folder = self.folder / self.options.shape
        return folder, random_model(folder, self.options.shape)


_BARE = ("--dtype", "float32", "--no-enable-prefix-caching")
"""Without vLLM's prefix cache, whose exact pages would answer in place of linked ones."""


def rates_of(rates: str) -> tuple[float | None, ...]:
    """Return rates of a command line, such as `0.5,2,inf`.

    Raises:
        ValueError: one is no number above zero.
    """
    found: list[float | None] = []
    for part in rates.split(","):
        rate = float(part)
        if not rate > 0:
            raise ValueError(f"{part} turns a second: give more than zero, or inf")
        found.append(None if rate == float("inf") else rate)
    return tuple(found)
