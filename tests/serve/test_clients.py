"""OpenAI's own client against a server of each engine: the same calls, the same answers, the same errors.

`make test-vllm-matrix` runs this inside vLLM too; elsewhere the embedded engine stands alone.
"""

import base64
import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from benchmarks.tasks import Episode
from emblema.serve.keys import KeyRing
from emblema.store import Store
from tests.serve.conftest import QUESTION, asked, data_url
from tests.serve.engines import COMMANDS, ServedEngine, served
from tests.serve.sent import noise

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
DEMO = ROOT / "src" / "emblema" / "assets" / "demo"
GREEDY: dict[str, Any] = {"model": "reference", "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module", params=COMMANDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    with served(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="module", params=COMMANDS)
def keyed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    """A server that had a key: it is not open again."""
    with served(request.param, tmp_path_factory.mktemp(f"keyed-{request.param}")) as running:
        yield running


@pytest.fixture
def client(engine: ServedEngine) -> OpenAI:
    return engine.client()


def uploaded(client: OpenAI, png: bytes) -> dict[str, Any]:
    """A part of a file that was uploaded."""
    return {"type": "file", "file": {"file_id": client.files.create(file=("page.png", png), purpose="user_data").id}}


def said(client: OpenAI, messages: Any, **more: Any) -> Any:
    return client.chat.completions.create(messages=messages, **GREEDY | more)


def test_the_model_is_listed(client: OpenAI) -> None:
    assert "reference" in [model.id for model in client.models.list()]
    with pytest.raises(openai.NotFoundError):
        said(client, asked([]), model="another")


def test_a_file_s_id_and_its_data_say_the_same(client: OpenAI, pngs: list[bytes]) -> None:
    inline = said(client, asked(pngs))
    by_id = said(client, [{"role": "user", "content": [*(uploaded(client, png) for png in pngs), text(QUESTION)]}])
    data = [{"type": "file", "file": {"file_data": data_url(png), "filename": "page.png"}} for png in pngs]
    as_files = said(client, [{"role": "user", "content": [*data, text(QUESTION)]}])
    for reply in (inline, by_id, as_files):
        [choice] = reply.choices
        assert choice.message.role == "assistant" and choice.finish_reason == "stop"
        assert choice.message.content.strip() == inline.choices[0].message.content.strip() != ""
        usage = reply.usage
        assert usage.prompt_tokens == inline.usage.prompt_tokens > 100
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def test_what_comes_again_is_counted_as_cached(client: OpenAI, pngs: list[bytes]) -> None:
    for _ in range(4):
        reply = said(client, asked(pngs))
    assert 0 < reply.usage.prompt_tokens_details.cached_tokens < reply.usage.prompt_tokens


def test_a_stream_is_the_whole_reply_in_pieces(client: OpenAI, pngs: list[bytes]) -> None:
    whole = said(client, asked(pngs))
    chunks = list(said(client, asked(pngs), stream=True, stream_options={"include_usage": True}))
    *pieces, last = chunks
    assert len({chunk.id for chunk in chunks}) == 1
    words = "".join(chunk.choices[0].delta.content or "" for chunk in pieces if chunk.choices)
    assert words == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in pieces if chunk.choices][-1] == "stop"
    assert not last.choices and last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens_details.cached_tokens is not None


def test_a_conversation_goes_on(client: OpenAI, pngs: list[bytes], episode: Episode) -> None:
    turns: list[Any] = [{"role": "system", "content": "answer in a word ."}, *asked(pngs[:1])]
    first = said(client, turns)
    more = [uploaded(client, pngs[-1]), text(episode.questions[0].text)]
    turns += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": more}]
    second = said(client, turns)
    assert second.choices[0].message.content.strip() == episode.questions[0].answer
    assert second.usage.prompt_tokens > first.usage.prompt_tokens + 60


def test_replies_are_as_long_and_as_random_as_asked(client: OpenAI, pngs: list[bytes]) -> None:
    short = said(client, asked(pngs), max_tokens=1)
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 1
    same = [said(client, asked(pngs), temperature=2, seed=3).choices[0].message.content for _ in range(2)]
    assert same[0] == same[1]
    answer = said(client, asked(pngs)).choices[0].message.content.strip()
    assert answer not in said(client, asked(pngs), stop=[answer[1:]]).choices[0].message.content
    told = said(client, asked(pngs), logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert told[0].logprob <= 0 and len(told[0].top_logprobs) == 2


def test_files_are_kept_listed_and_deleted(client: OpenAI, pngs: list[bytes]) -> None:
    with pytest.raises(openai.BadRequestError):
        client.files.create(file=("a.png", pngs[0]), purpose="fine-tune")
    after: Any = {"anchor": "created_at", "seconds": 3_600}
    first = client.files.create(file=("a.png", pngs[0]), purpose="user_data", expires_after=after)
    again = client.files.create(file=("b.png", pngs[0]), purpose="user_data")
    other = client.files.create(file=("c.png", pngs[1]), purpose="vision")
    assert first.id == again.id != other.id and first.expires_at == first.created_at + 3_600
    assert client.files.retrieve(first.id).filename == "b.png" and client.files.retrieve(first.id).bytes == len(pngs[0])
    assert client.files.content(first.id).read() == pngs[0]
    assert {first.id, other.id} <= {file.id for file in client.files.list()}
    assert client.files.delete(other.id).deleted
    gone = {"type": "file", "file": {"file_id": other.id}}
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(other.id)
    with pytest.raises(openai.NotFoundError, match="no file"):
        said(client, [{"role": "user", "content": [gone, text(QUESTION)]}])


def kept(http: httpx.Client, content: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
    answer = http.post("/v1/caches?wait=true", json={"content": content} | body)
    assert answer.status_code == 200, answer.text
    cache: dict[str, Any] = answer.json()
    return cache


def use(cache: dict[str, Any]) -> dict[str, Any]:
    return {"type": "cache", "cache": {"cache_id": cache["id"]}}


def test_the_first_question_to_a_cache_computes_text_alone(
    engine: ServedEngine, client: OpenAI, pngs: list[bytes]
) -> None:
    order = [pngs[2], pngs[0], pngs[1]]
    with engine.http() as http:
        content = [text("the pages :"), uploaded(client, order[0]), *(part(data_url(png)) for png in order[1:])]
        cache = kept(http, content, ttl=600, name="pages")
        assert cache["object"] == "cache" and cache["name"] == "pages" and cache["tokens"] > 100 < cache["bytes"]
        assert cache["expires_at"] - cache["created_at"] == 600
        assert http.get(f"/v1/caches/{cache['id']}").json() == cache
        assert cache["id"] in [each["id"] for each in http.get("/v1/caches").json()["data"]]
        assert [each["type"] for each in cache["content"]] == ["text", "file", "file", "file"]
        assert kept(http, content, ttl=60)["id"] == cache["id"], "the same parts are the same cache"
        longer = http.patch(f"/v1/caches/{cache['id']}", json={"ttl": 7_200}).json()
        assert longer["expires_at"] >= cache["expires_at"] + 6_000
    strategy = {"strategy": "patch-25%"}
    turn = [text("here are more pages ."), use(cache), text(QUESTION)]
    reply = said(client, [{"role": "user", "content": turn}], extra_body=strategy)
    assert reply.usage.prompt_tokens_details.cached_tokens >= cache["tokens"]
    turn[1:2] = [text("the pages :"), *(part(data_url(png)) for png in order)]
    same = said(client, [{"role": "user", "content": turn}], extra_body=strategy)
    assert reply.choices[0].message.content == same.choices[0].message.content
    assert reply.usage.prompt_tokens == same.usage.prompt_tokens


def picture(seed: int) -> bytes:
    """A picture that no other test shows."""
    return noise(seed, 224)


def test_a_part_with_a_breakpoint_is_kept_wherever_it_stands(engine: ServedEngine, client: OpenAI) -> None:
    before, plain = pinned(engine), part(data_url(picture(8)))
    marked = plain | {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    options: dict[str, Any] = {"prompt_cache_key": "k", "prompt_cache_options": {"ttl": "30m"}}
    first = said(client, [{"role": "user", "content": [marked, text(QUESTION)]}], **options)
    written = first.usage.prompt_tokens_details.cache_write_tokens
    assert written > 0 and len(pinned(engine) - before) == 1
    turn = [{"role": "user", "content": [text("elsewhere :"), marked, text(QUESTION)]}]
    more: dict[str, Any] = {"stream_options": {"include_usage": True}}
    *pieces, last = said(client, turn, stream=True, extra_body={"strategy": "blind"}, **more)
    assert last.usage.prompt_tokens_details.cache_write_tokens == 0
    assert last.usage.prompt_tokens_details.cached_tokens >= written
    turn[0]["content"][1] = plain  # type: ignore[index]
    whole = said(client, turn, extra_body={"strategy": "blind"})
    assert whole.choices[0].message.content == "".join(each.choices[0].delta.content or "" for each in pieces)


@pytest.mark.parametrize("wrong", [{"mode": "implicit"}, {"mode": "explicit", "ttl": "31d"}, {}, "explicit", []])
def test_breakpoints_that_are_not_right_are_refused(client: OpenAI, wrong: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        said(client, [{"role": "user", "content": [part(data_url(picture(9))) | {"prompt_cache_breakpoint": wrong}]}])


def pinned(engine: ServedEngine) -> set[str]:
    """What the store holds, as another process sees it."""
    with Store(engine.store, device_bytes=1) as store:
        assert store.disk is not None
        return {entry.id for entry in store.disk.entries() if entry.terms.pinned}


def test_a_cache_ends_by_its_time_a_deletion_or_with_its_file(engine: ServedEngine, client: OpenAI) -> None:
    before, file = pinned(engine), uploaded(client, picture(7))
    with engine.http() as http:
        lost, deleted, ended = kept(http, [file]), kept(http, [file, text("a")]), kept(http, [file, text("b")], ttl=1)
        assert len(pinned(engine) - before) >= 2, "a chunk and its patch"
        path = f"/v1/caches/{deleted['id']}"
        assert http.delete(path).json() == {"id": deleted["id"], "object": "cache", "deleted": True, "holders": 0}
        time.sleep(1.1)
        for cache in (deleted, ended):
            path = f"/v1/caches/{cache['id']}"
            for answer in (http.get(path), http.delete(path), http.patch(path, json={"ttl": 9})):
                assert answer.status_code == 404 and answer.json()["error"]["code"] == "cache_not_found"
        assert pinned(engine) > before
        # What has ended is let go when the next is made.
        http.delete(f"/v1/caches/{kept(http, [file, text('c')])['id']}")
        client.files.delete(file["file"]["file_id"])
        assert pinned(engine) == before
        for cache in (lost, deleted, ended):
            with pytest.raises(openai.NotFoundError):
                said(client, [{"role": "user", "content": [use(cache), text(QUESTION)]}])


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


BAD_PARTS = [
    part("http://127.0.0.1:1/a.png"),
    part("http://169.254.169.254/latest/meta-data/"),
    part("file:///etc/passwd"),
    part("data:image/png;base64,AAAA"),
    part("data:image/png;base64," + base64.b64encode(b"PK\x03\x04 a zip").decode()),
    part("data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode()),
    {"type": "file", "file": {}},
    {"type": "unheard-of", "text": "x"},
]


@pytest.mark.parametrize("bad", BAD_PARTS, ids=lambda bad: json.dumps(bad)[:50])
def test_parts_that_cannot_be_read_are_refused(client: OpenAI, bad: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        said(client, [{"role": "user", "content": [bad, text(QUESTION)]}])
    assert refused.value.body["message"]  # type: ignore[index]


@pytest.mark.parametrize(
    "wrong",
    [{"cache_salt": "mine"}, {"max_tokens": -1}, {"temperature": -1}, {"messages": 3}, {"messages": [{"role": 3}]},
     {"stream_options": 3}],
    ids=str,
)  # fmt: skip
def test_wrong_fields_are_refused_in_openai_s_shape(engine: ServedEngine, wrong: dict[str, Any]) -> None:
    with engine.http() as http:
        answer = http.post("/v1/chat/completions", json=GREEDY | {"messages": asked([])} | wrong)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"] and error["type"] and {"param", "code"} <= set(error)


def test_requests_are_counted_and_logged(engine: ServedEngine, client: OpenAI, pngs: list[bytes]) -> None:
    uploaded(client, pngs[0])
    with engine.http() as http:
        id = http.get("/v1/files").headers["x-request-id"]
        counted = http.get("/metrics").text
    assert re.search(r'emblema_requests_total\{path="/v1/files",status="200"\} \d', counted)
    [line] = [line for line in engine.log.read_text().splitlines() if id in line]
    told = json.loads(line)
    assert (told["method"], told["path"], told["status"]) == ("GET", "/v1/files", 200)


def rows(http: httpx.Client) -> dict[str, float]:
    """Rows of prompts so far, by where from."""
    found = re.findall(r'^emblema_prompt_rows_total{.*source="(\w+)"} (\S+)$', http.get("/metrics").text, re.MULTILINE)
    return {source: float(count) for source, count in found}


def test_the_metrics_of_the_dashboard_are_told(engine: ServedEngine, client: OpenAI, pngs: list[bytes]) -> None:
    turn = [{"role": "user", "content": [text("see :"), part(data_url(picture(10))), text(QUESTION)]}]
    with engine.http() as http:
        for _ in range(2):
            # Once more when the picture's rows are there.
            kept(http, [part(data_url(picture(10)))], ttl=60)
            before = rows(http)
            reply = said(client, turn, extra_body={"strategy": "patch-25%"})
        usage = reply.usage
        assert usage.prompt_tokens_details.cached_tokens > 50
        until = time.monotonic() + 60
        while sum((now := rows(http)).values()) - sum(before.values()) < usage.prompt_tokens:
            assert time.monotonic() < until, (before, now)
            time.sleep(0.1)
        came = {source: count - before.get(source, 0) for source, count in now.items()}
        assert sum(came.values()) == usage.prompt_tokens and came["patched"] > 50
        assert came["computed"] == usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens
        told = http.get("/metrics").text
    known = set(re.findall(r"^(emblema_\w+?)(?:{| )", told, re.MULTILINE))
    dashboard = (ROOT / "deploy" / "grafana.json").read_text()
    # Inside vLLM nothing is computed again to compare.
    assert set(re.findall(r"emblema_\w+", dashboard)) - known <= {"emblema_canary_kl"}
    assert re.search(r'^emblema_hits_total{.*lane="patch-25%".*} [1-9]', told, re.MULTILINE)
    assert re.search(r"^emblema_time_to_first_token_seconds_count.* [1-9]", told, re.MULTILINE)
    assert re.search(r'^emblema_store_bytes{.*tier="disk".*} [1-9]', told, re.MULTILINE)
    assert re.search(r'^emblema_store_events_total{.*event="saves".*} [1-9]', told, re.MULTILINE)


def test_the_commands_of_the_page_work(engine: ServedEngine, tmp_path: Path) -> None:
    """Those about both engines, with this server's address; and inside vLLM those of the plugin's page."""
    [reply] = run_commands("serve", "The same inside vLLM", engine, tmp_path)
    assert reply["choices"][0]["message"]["content"].strip() == "meadow"
    if engine.command == "vllm-serve":
        chat, response, message = run_commands("vllm", "Which files and keys are there?", engine, tmp_path)
        words = chat["choices"][0]["message"]["content"]
        assert words == response["output"][0]["content"][0]["text"] == message["content"][0]["text"] != ""


def run_commands(page: str, section: str, engine: ServedEngine, folder: Path) -> list[Any]:
    """Run the commands of a page's section, and return the replies."""
    text = (ROOT / "docs" / f"{page}.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    [commands] = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    for name in ("legend-3.png", "map-01.png"):
        (folder / name).write_bytes((DEMO / name).read_bytes())
    # Replies come without a line's end.
    script = "set -e\n" + re.sub(
        r"^(}')$", r"\1; echo", commands.replace("http://127.0.0.1:8000", engine.address), flags=re.MULTILINE
    )
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def keys_of(engine: ServedEngine, *tenants: str) -> Iterator[list[str]]:
    """Keys of a server, which are taken back when the block ends."""
    ring = KeyRing(engine.store / "serve")
    try:
        yield [ring.add(tenant) for tenant in tenants]
    finally:
        for entry in ring.list():
            ring.revoke(entry.id)


def test_keys_are_needed_and_files_are_their_tenant_s(keyed: ServedEngine, pngs: list[bytes]) -> None:
    with keys_of(keyed, "one", "two") as (one, two):
        for key in ("none", one[:-1]):
            wrong = keyed.client(key)
            for call in (wrong.models.list, wrong.files.list, lambda: said(wrong, asked([]))):  # noqa: B023
                with pytest.raises(openai.AuthenticationError):
                    call()
        mine, theirs = keyed.client(one), keyed.client(two)
        file = uploaded(mine, pngs[0])
        id = file["file"]["file_id"]
        for call in (theirs.files.retrieve, theirs.files.content, theirs.files.delete):
            with pytest.raises(openai.NotFoundError):
                call(id)
        messages = [{"role": "user", "content": [file, text(QUESTION)]}]
        with pytest.raises(openai.NotFoundError, match="no file"):
            said(theirs, messages)
        assert list(theirs.files.list()) == [] and [file.id for file in mine.files.list()] == [id]
        assert uploaded(theirs, pngs[0])["file"]["file_id"] != id
        assert (
            said(mine, messages).choices[0].message.content == said(theirs, asked(pngs[:1])).choices[0].message.content
        )
        with pytest.raises(openai.BadRequestError):
            said(mine, messages, extra_body={"cache_salt": "two's"})
    for key in ("none", one):
        with pytest.raises(openai.AuthenticationError):
            keyed.client(key).files.list()


def test_another_tenants_cache_is_not_there(keyed: ServedEngine, pngs: list[bytes]) -> None:
    with keys_of(keyed, "five", "six") as keys, ExitStack() as stack:
        mine, theirs = (stack.enter_context(keyed.http(key)) for key in keys)
        cache = kept(mine, [part(data_url(png)) for png in pngs[:2]])
        path, turn = f"/v1/caches/{cache['id']}", [{"role": "user", "content": [use(cache), text(QUESTION)]}]
        assert theirs.get("/v1/caches").json()["data"] == []
        for answer in (
            theirs.get(path), theirs.delete(path), theirs.patch(path, json={"ttl": 60}),
            theirs.post("/v1/chat/completions", json=GREEDY | {"messages": turn}),
            theirs.post("/v1/caches", json={"content": cache["content"]}),
        ):  # fmt: skip
            assert answer.status_code == 404
        assert kept(theirs, [part(data_url(png)) for png in pngs[:2]])["id"] != cache["id"]
        assert mine.delete(path).status_code == 200


def test_what_another_tenant_showed_is_not_cached(keyed: ServedEngine, pngs: list[bytes]) -> None:
    with keys_of(keyed, "three", "four") as (three, four):
        for _ in range(4):
            mine = said(keyed.client(three), asked(pngs))
        assert mine.usage.prompt_tokens_details.cached_tokens > 0
        first = said(keyed.client(four), asked(pngs))
        assert first.usage.prompt_tokens_details.cached_tokens == 0
        assert first.choices[0].message.content == mine.choices[0].message.content
