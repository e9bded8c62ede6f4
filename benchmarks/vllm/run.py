"""The whole bench of the plugin: servers one after the other, and what was measured of each."""

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.vllm.client import Client
from benchmarks.vllm.conversations import of_noise, of_pages
from benchmarks.vllm.load import Loaded, load
from benchmarks.vllm.measure import agreement, clients, first_tokens, plain_data
from benchmarks.vllm.model import random_model
from emblema.models.load import bundled_folder

Serve = Callable[[str, Path, str, Sequence[str]], AbstractContextManager[str]]
"""A server of a model with a store, a strategy and more options, for as long as a block runs; its address."""
AGREEING = ("auto", "blind")
TIMED = ("blind", "mpic-32")
TALKING = ("auto", "blind", "mpic-32")
SIDE = 448
ANSWER = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured; a zero leaves a part out.

    Attributes:
        questions: two-page questions for agreement.
        rounds: of first tokens.
        shape: of the random model that is timed, see `model.SHAPES`.
        pictures: in the timed prompt, of 256 tokens each.
        dtype: of the timed model.
        clients: at once.
        talks: conversations over ten pictures.
        rates: turns a second of them; None for all at once.
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
    seed: int = 0


class Bench:
    """Runs the parts in a folder of its own.

    Args:
        serve: starts servers.
        device: what they run on, in words.
        say: told of every figure as it comes.
    """

    def __init__(self, settings: Settings, folder: Path, serve: Serve, device: str, say: Callable[[str], None]) -> None:
        self.settings, self.folder, self.serve, self.device, self.say = settings, folder, serve, device, say

    def run(self) -> dict[str, Any]:
        """Everything that is wanted, as plain data.

        Raises:
            EmblemaError: a server did not start, refused, or did not link.
        """
        wanted = self.settings
        found: dict[str, Any] = {"device": self.device, "machine": platform.machine(), "settings": asdict(wanted)}
        self.say(f"device: {self.device}")
        if wanted.questions or wanted.clients:
            found |= self._answers()
        if wanted.rounds:
            found |= self._first_tokens()
        if wanted.talks:
            found |= self._talks()
        return found

    @contextmanager
    def _serving(self, model: str, name: str, strategy: str, more: Sequence[str]) -> Iterator[Client]:
        with self.serve(model, self.folder / name, strategy, more) as address:
            yield Client(address, model)

    def _answers(self) -> dict[str, Any]:
        wanted, found = self.settings, dict[str, Any]()
        with self._serving("reference", "agreement", "auto", _BARE) as client:
            if wanted.questions:
                told = agreement(client, AGREEING, wanted.questions, wanted.seed, lambda done: None)
                found["agreement"] = plain_data(told)
                for one in told:
                    self.say(
                        f"{one.strategy}: {one.agreeing} of {one.questions} as plain prefill [{one.low:.3f}, "
                        f"{one.high:.3f}], right {one.right} (plain {one.plain_right}), "
                        f"{one.linked_rows / max(1, one.picture_rows):.3f} of the picture rows linked"
                    )
            if wanted.clients:
                found["clients"] = clients(client, "auto", wanted.clients, 4 * wanted.clients, wanted.seed)
                self.say(f"clients: {found['clients']}")
        return found

    def _first_tokens(self) -> dict[str, Any]:
        wanted = self.settings
        folder, parameters = self._timed()
        more = ["--dtype", wanted.dtype, "--load-format", "dummy", "--no-enable-prefix-caching"]
        with self._serving(str(folder), "timed", "blind", more) as client:
            arms = first_tokens(client, TIMED, wanted.pictures, SIDE, wanted.rounds)
        for arm in arms:
            self.say(f"{arm.strategy}: {arm.median:.3f} s to the first token, {arm.linked_tokens} linked")
        return {"first_tokens": {"parameters": parameters, "pictures": wanted.pictures, "arms": plain_data(arms)}}

    def _talks(self) -> dict[str, Any]:
        wanted, found = self.settings, dict[str, Any]()
        folder, parameters = self._timed()
        noise = of_noise(wanted.talks, SIDE, wanted.seed)
        more = ["--dtype", wanted.dtype, "--load-format", "dummy"]
        with self._serving(str(folder), "talks", "blind", more) as client:
            held = load(client, folder, noise, TIMED, wanted.rates, 1, self.folder / "noise", self._loaded)
        found["talks"] = {"parameters": parameters, "held": plain_data(held)}
        pages = of_pages(wanted.talks, wanted.seed)
        with self._serving("reference", "pages", "auto", ["--dtype", "float32"]) as client:
            told = load(
                client,
                bundled_folder("reference"),
                pages,
                TALKING,
                wanted.rates,
                ANSWER,
                self.folder / "said",
                self._loaded,
            )
        found["answers"] = {"held": plain_data(told)}
        return found

    def _loaded(self, one: Loaded) -> None:
        self.say(
            f"{one.strategy} at {one.rate or 'once'}: {one.turns_a_second:.2f} turns a second, first turn "
            f"{one.first_turn:.2f} s, later {one.later_turns:.2f} s, {one.linked_tokens} of {one.prompt_tokens} tokens "
            f"linked, {one.kv_bytes / 1e6:.0f} MB, {one.agreeing} of {one.turns} as plain"
        )

    def _timed(self) -> tuple[Path, int]:
        folder = self.folder / self.settings.shape
        return folder, random_model(folder, self.settings.shape)


_BARE = ("--dtype", "float32", "--no-enable-prefix-caching")
"""Without vLLM's prefix cache, whose exact pages would answer in place of linked ones."""


def written(rates: str) -> tuple[float | None, ...]:
    """Rates from a command line, such as `0.5,2,inf`.

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


def read(path: Path) -> dict[str, Any]:
    """Figures that a run wrote."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found
