"""Many clients at once on a real server: each gets the tokens that it gets alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from openai import OpenAI

from benchmarks.models.delta import write_lists
from benchmarks.tasks.list_tasks import lists_episode
from tests.serve.conftest import data_url
from tests.serve.processes import Process, process
from tests.serve.sent import png_of

STRATEGIES = ("full", "prefix", "blind", "patch-25%", "mpic-32", "cacheblend-15")
STOPS: tuple[Any, ...] = (None, ["lake", "forest"], "red")
NAME = "lists"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request was given; `tokens` where it asked for probabilities."""

    text: str
    reason: str
    completion_tokens: int
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MixedRequests:
    """Requests by number: pictures and turns, files and data, streams, stop strings, lengths and strategies."""

    pngs: tuple[bytes, ...]
    episodes: tuple[range, ...]
    files: tuple[str, ...]
    questions: tuple[str, ...]

    def part(self, picture: int, number: int) -> dict[str, Any]:
        if number % 2:
            return {"type": "file", "file": {"file_id": self.files[picture]}}
        return {"type": "image_url", "image_url": {"url": data_url(self.pngs[picture])}}

    def messages(self, number: int) -> list[dict[str, Any]]:
        episode = self.episodes[number % len(self.episodes)]
        shown = ((), episode[-1:], episode, episode[::-2])[number // 2 % 4]
        question = self.questions[number % len(self.questions)]
        content = [*(self.part(picture, number) for picture in shown), {"type": "text", "text": question}]
        turns: list[dict[str, Any]] = [{"role": "user", "content": content}]
        for turn in range(number % 3):
            turns.append({"role": "assistant", "content": "moon lake"})
            more = [self.part((number + turn) % len(self.pngs), number + 1), {"type": "text", "text": question}]
            turns.append({"role": "user", "content": more})
        return turns

    def pictures(self, number: int) -> int:
        return sum(part["type"] != "text" for turn in self.messages(number)[::2] for part in turn["content"])

    def strategy(self, number: int) -> str:
        return STRATEGIES[number // 3 % len(STRATEGIES)]

    def ask(self, client: OpenAI, number: int) -> Answer:
        options: dict[str, Any] = {
            "temperature": 0,
            "max_tokens": 1 + number * 7 % 12,
            "stop": STOPS[number // 4 % len(STOPS)],
            "logprobs": number // 2 % 2 == 0,
            "extra_body": {"strategy": self.strategy(number)},
        }
        called = {"model": NAME, "messages": self.messages(number), **options}
        if number % 5 < 2:
            whole = client.chat.completions.create(**called)
            choice = whole.choices[0]
            told = choice.logprobs.content if choice.logprobs else []
            return Answer(
                choice.message.content, choice.finish_reason, whole.usage.completion_tokens,
                tuple(token.token for token in told),
            )  # fmt: skip
        events = list(client.chat.completions.create(**called, stream=True, stream_options={"include_usage": True}))
        choices = [event.choices[0] for event in events if event.choices]
        tokens = [token.token for choice in choices if choice.logprobs for token in choice.logprobs.content]
        text = "".join(choice.delta.content or "" for choice in choices)
        return Answer(text, choices[-1].finish_reason, events[-1].usage.completion_tokens, tuple(tokens))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server of a model that answers with lists."""
    folder = tmp_path_factory.mktemp("lists")
    model = write_lists(folder / NAME)
    with process(folder / "store", str(model), "--dtype", "float32") as running:
        yield running


def mixed(client: OpenAI) -> MixedRequests:
    """Requests to a server of the model that answers with lists, with its files uploaded."""
    pngs: list[bytes] = []
    episodes: list[range] = []
    for episode in (lists_episode(7, number) for number in range(2)):
        episodes.append(range(len(pngs), len(pngs) + len(episode.pages)))
        pngs += (png_of(page.image()) for page in episode.pages)
    files = [client.files.create(file=("page.png", png), purpose="user_data").id for png in pngs]
    questions = ("list all icons , each with its land .", "name every icon and its colour .")
    return MixedRequests(tuple(pngs), tuple(episodes), tuple(files), questions)


def together(client: OpenAI, requests: MixedRequests, clients: int, count: int) -> list[Answer]:
    """The answers to so many requests of so many clients at once."""
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda number: requests.ask(client, number), range(count)))


def differences(alone: list[Answer], at_once: list[Answer]) -> list[tuple[int, Answer, Answer]]:
    """The requests that got something else at once, by number."""
    pairs = zip(alone, at_once, strict=True)
    return [(number, *pair) for number, pair in enumerate(pairs) if pair[0] != pair[1]]


def check_mixed(answers: list[Answer]) -> None:
    """Answers are what they are meant to be: long and short, ended by all that ends a reply."""
    assert max(answer.completion_tokens for answer in answers) > 8
    assert {answer.reason for answer in answers} == {"stop", "length"}
    assert any(answer.tokens for answer in answers) and len({answer.text for answer in answers}) > 9


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "count"), [(8, 16), pytest.param(64, 200, marks=pytest.mark.nightly)])
def test_each_of_many_gets_what_it_gets_alone(server: Process, clients: int, count: int) -> None:
    requests = mixed(server.client)
    alone = [requests.ask(server.client, number) for number in range(count)]
    different = differences(alone, together(server.client, requests, clients, count))
    assert not different, [line for line in server.log if "Traceback" in line][:1]
    check_mixed(alone)
