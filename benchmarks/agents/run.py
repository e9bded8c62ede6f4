"""Replays sessions: every arm at a turn before any at the next, and several sessions at once for throughput."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks.agents.arms import AGAINST, CLIENT, METHODS, ClientArm, EmbeddedArm, SessionArm, fields_of
from benchmarks.agents.figures import Figures, PictureRows, Row, SessionAnswers, rule_bars, rule_figures
from benchmarks.agents.rules import KeptPicture
from benchmarks.agents.sessions import AgentSession, SessionRequest, SessionSettings, session_of
from benchmarks.cost.timing import turned
from benchmarks.load.chat_client import ChatClient
from benchmarks.load.servers import LoadServer, random_model, serving
from benchmarks.load.stages import AUTO, ENGINE, FULL, PREFIX, STOCK, VLLM, LoadAnswer
from benchmarks.table import Bar
from benchmarks.window.arms import RowCounter, counted_rows
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.eval.figures import environment
from emblema.eval.progress import steps

MOST_PICTURES = 256
"""Pictures that a server takes in a request."""
Maker = Callable[[str], SessionArm]
"""Makes an arm for what a name says, with nothing known from others."""


@dataclass(frozen=True, slots=True)
class OtherServer:
    """A server that runs already: its address, its key and its name of the model."""

    address: str
    key: str
    model: str


@dataclass(slots=True)
class AgentBench:
    """Measures arms on sessions.

    Attributes:
        load: loads the model for the embedded engine.
        shape, dtype: of a model of random weights.
        random: whether servers run that in place of `model`.
        tokens: of an answer, at the most.
    """

    model: str
    load: Callable[[], Engine]
    command: str
    settings: SessionSettings
    seed: int
    screen: Console
    shape: str = "137m"
    dtype: str = "float32"
    tokens: int = 8
    random: bool = False

    def measure(
        self, engines: Sequence[str], rules: Sequence[str], others: Sequence[OtherServer] = ()
    ) -> Iterator[Figures]:
        """Measure arms under rules, one after another in turns; yield figures rule by rule."""
        with self.arms(engines, others) as makers:
            for rule in rules:
                before, session = os.getloadavg()[0], session_of(self.settings, rule, self.seed)
                with ExitStack() as stack:
                    arms = [made_arm(maker(rule), stack) for maker in makers]
                    answers, pictures = self.replay(session, arms), picture_rows(arms[0], session)
                rows = [rule_figures(session, own, pictures) for own in compared(arms, answers)]
                bars = [self._named(row, bar) for row in rows if barred(row) for bar in rule_bars(row)]
                yield self._told({"rules": rows, "bars": bars}, before)

    def saturate(
        self, engines: Sequence[str], rules: Sequence[str], sessions: int, others: Sequence[OtherServer] = ()
    ) -> Iterator[Figures]:
        """Measure answers a second of each server while several sessions ask it at once, each after its answers."""
        if ENGINE in engines:
            raise PromptError("--sessions are of servers: name some with --engines")
        with self.arms(engines, others) as makers:
            for rule in rules:
                before = os.getloadavg()[0]
                asked = [session_of(self.settings, rule, self.seed + 1 + place) for place in range(sessions)]
                rows = [self._at_once(maker(f"{rule}-at-once"), asked) for maker in makers]
                plain = {row["engine"]: row for row in rows if row["method"] in ("stock", AGAINST, PREFIX, FULL)}
                for row in rows:
                    other = plain.get({VLLM: STOCK, CLIENT: AGAINST}.get(row["engine"], row["engine"]))
                    row["throughput"] = row["answers_s"] / other["answers_s"] if other else None
                bars = [self._named(row, bar) for row in rows if barred(row) for bar in throughput_bars(row)]
                yield self._told({"saturation": rows, "bars": bars}, before)

    def replay(self, session: AgentSession, arms: Sequence[SessionArm]) -> list[list[LoadAnswer]]:
        """Return what every arm answers to every request, another arm first each time."""
        found: list[list[LoadAnswer]] = [[] for _ in arms]
        title = f"{session.rule}: {len(session.requests)} requests"
        with steps(self.screen, title, len(session.requests)) as advance:
            for index, request in enumerate(session.requests):
                for place in turned(range(len(arms)), index):
                    found[place].append(arms[place].ask(session, request, self.tokens))
                    arms[place].settle()
                advance()
        return found

    def _at_once(self, arm: SessionArm, sessions: Sequence[AgentSession]) -> Row:
        """Return an arm's figures while all sessions ask it."""
        if not isinstance(arm, ClientArm):
            raise PromptError("only servers answer several sessions at once")
        bodies = [[arm.body(session, request, self.tokens) for request in session.requests] for session in sessions]
        arm.settle()
        began = time.perf_counter()
        with ThreadPoolExecutor(len(sessions)) as pool:
            answers = [
                answer for own in pool.map(lambda own: [arm.send(body) for body in own], bodies) for answer in own
            ]
        seconds = time.perf_counter() - began
        self.screen.print(f"{sessions[0].rule}, {arm.engine_name} {arm.method}: {len(answers) / seconds:.2f} a second")
        return {
            "engine": arm.engine_name, "method": arm.method, "rule": sessions[0].rule, "sessions": len(sessions),
            "requests": len(answers), "answers_s": len(answers) / seconds,
        }  # fmt: skip

    @contextmanager
    def arms(self, engines: Sequence[str], others: Sequence[OtherServer] = ()) -> Iterator[list[Maker]]:
        """Start what is measured; yield what makes its arms."""
        with ExitStack() as stack:
            makers = list[Maker]()
            for engine in engines:
                if engine == ENGINE:
                    makers += self._embedded(stack)
                    continue
                methods = METHODS[engine]
                if engine == VLLM and STOCK not in engines:
                    methods = (FULL, *methods)
                server = stack.enter_context(self._serving(engine))
                makers += [_server_maker(server, method, self.random) for method in methods]
            for name, other in zip((CLIENT, AGAINST), others, strict=False):
                makers.append(_client_maker(name, other))
            yield makers

    def _embedded(self, stack: ExitStack) -> list[Maker]:
        model = self.load()
        counter = stack.enter_context(counted_rows(model.adapter))
        return [_embedded_maker(method, model, counter) for method in METHODS[ENGINE]]

    @contextmanager
    def _serving(self, engine: str) -> Iterator[LoadServer]:
        model, more = self.model, list[str]()
        with TemporaryDirectory(prefix="emblema-agents-") as place:
            folder = Path(place)
            if self.random:
                model, more = str(random_model(folder / self.shape, self.shape)), ["--dtype", self.dtype]
                more += ["--load-format", "dummy"]
            if engine in (VLLM, STOCK):
                limit = f'{{"image": {MOST_PICTURES}, "video": 0}}'
                more += ["--limit-mm-per-prompt", limit, "--max-model-len", str(2 * self.settings.length)]
            with serving(engine, model, folder, more) as server:
                yield server

    def _named(self, row: Row, bar: Bar) -> Row:
        return {**{name: row[name] for name in ("engine", "method", "rule")}, **bar.data()}

    def _told(self, found: Figures, before: float) -> Figures:
        """Return figures with the model and the world that they are of, and what is to be said of the run."""
        where, model = environment(), f"random, {self.shape}" if self.random else self.model
        about = {"model": model, "world": self.settings.world}
        device = f"{where['device']}, {where['cores']} cores, torch {where['torch']}"
        told = {"command": self.command, "device": device, "date": where["date"]}
        rule = next(iter(rows[0]["rule"] for rows in found.values() if rows))
        load = f"{before:.1f} to {os.getloadavg()[0]:.1f}"
        part = "saturation" if "saturation" in found else "rules"
        engines = ", ".join(dict.fromkeys(row["engine"] for row in found[part]))
        runs = [{"part": part, "engine": engines, "rule": rule, "load": load, **told}]
        return {name: [{**about, **row} for row in rows] for name, rows in {**found, "runs": runs}.items()}


def throughput_bars(row: Row) -> Iterator[Bar]:
    """Yield what has to hold of an arm that several sessions asked at once, if another was asked too."""
    if row["throughput"] is not None:
        yield Bar("answers a second, over the plain arm's", row["throughput"], 2.0, True, row["requests"])


def made_arm(arm: SessionArm, stack: ExitStack) -> SessionArm:
    """Return an arm whose engine is closed at the end."""
    if isinstance(arm, EmbeddedArm):
        stack.callback(arm.engine.close)
    return arm


def barred(row: Row) -> bool:
    """Return whether bars are of an arm: `auto`, or a server that is compared with another."""
    return row["method"] in (AUTO, CLIENT)


def compared(arms: Sequence[SessionArm], answers: Sequence[Sequence[LoadAnswer]]) -> Iterator[SessionAnswers]:
    """Yield every arm's answers beside those of full recompute and of the plain arm, where these were asked too."""
    by = {(arm.engine_name, arm.method): own for arm, own in zip(arms, answers, strict=True)}
    for arm, own in zip(arms, answers, strict=True):
        beside = {VLLM: (STOCK, "stock"), STOCK: (STOCK, "stock"), CLIENT: (AGAINST, AGAINST)}.get(arm.engine_name)
        exact = by.get(beside or (arm.engine_name, FULL), by.get((arm.engine_name, FULL)))
        plain = by.get((arm.engine_name, PREFIX), exact)
        yield SessionAnswers(arm.engine_name, arm.method, own, exact, plain)


def picture_rows(arm: SessionArm, session: AgentSession) -> PictureRows:
    """Ask an arm how many rows a whole and a cropped picture have in a prompt."""
    prompts = [
        arm.ask(session, SessionRequest(0, 0, kept, (), anew=True), 1).prompt
        for kept in ((), (KeptPicture(0),), (KeptPicture(0, cropped=True),))
    ]
    return PictureRows(prompts[1] - prompts[0], prompts[2] - prompts[0])


def _embedded_maker(method: str, model: Engine, counter: RowCounter) -> Maker:
    """Return what makes engines on the weights of a model."""
    return lambda rule: EmbeddedArm(ENGINE, method, model, counter)


def _client_maker(name: str, other: OtherServer) -> Maker:
    """Return what makes clients of a server that runs already."""
    client = ChatClient(other.address, name, other.key)
    return lambda rule: ClientArm(name, name, client, other.model)


def _server_maker(server: LoadServer, method: str, any_margin: bool) -> Maker:
    """Return what makes clients of a server, each a tenant with a store of its own."""

    def make(rule: str) -> ClientArm:
        key = server.keys.add(f"{method}-{rule}".replace(", ", "-"))
        client = ChatClient(server.address, server.engine, key)
        return ClientArm(server.engine, method, client, server.model, fields_of(server.engine, method, any_margin))

    return make


def told_command(arguments: Sequence[str], seed: int | None, chosen: int) -> str:
    """Return how figures are asked for, with the seed that was drawn."""
    import shlex

    return f"python -m benchmarks {shlex.join(arguments)}" + (f" --seed {chosen}" if seed is None else "")


def others_of(server: str | None, against: str | None, key: str, model: str) -> list[OtherServer]:
    """Return the servers that run already, of their addresses, which may end as clients' base addresses do."""
    found = [address.rstrip("/").removesuffix("/v1") for address in (server, against) if address]
    return [OtherServer(address, key, model) for address in found]
