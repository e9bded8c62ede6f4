"""Frameworks over OpenAI's interface: langchain, llama-index, instructor, pydantic-ai and openai-agents."""

import asyncio
from typing import Any, Literal

import agents
import httpx
import instructor
import pytest
from instructor.core.exceptions import IncompleteOutputException, InstructorRetryException
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock
from llama_index.llms.openai_like import OpenAILike
from openai import AsyncOpenAI, OpenAI
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.clients.asking import LONG, MODEL, MOST, WORDS, Sight, answer, picture, png, shown


def langchain(address: str, **more: Any) -> ChatOpenAI:
    given = {"max_tokens": MOST, "temperature": 0.0, "max_retries": 0} | more
    return ChatOpenAI(model=MODEL, base_url=address, api_key="none", **given)  # type: ignore[arg-type]


def test_langchain_invokes(address: str, http: httpx.Client) -> None:
    expected, model = answer(http, shown()), langchain(address)
    block = {"type": "image", "base64": picture().partition(",")[2], "mime_type": "image/png"}
    turn = HumanMessage(content=[block, {"type": "text", "text": WORDS}])
    reply = model.invoke([turn])
    assert reply.content == expected and reply.usage_metadata["output_tokens"] == MOST  # type: ignore[index]
    assert "".join(str(chunk.content) for chunk in model.stream([turn])) == expected
    assert [each.content for each in model.batch([[turn], [turn]])] == [expected] * 2


def test_langchain_names_files(address: str) -> None:
    file = OpenAI(base_url=address, api_key="none").files.create(file=("a.png", png()), purpose="user_data")
    block = {"type": "file", "file_id": file.id}
    for more in ({}, {"use_responses_api": True}):
        reply = langchain(address, **more).invoke([HumanMessage(content=[block, {"type": "text", "text": WORDS}])])
        assert reply.usage_metadata is not None and reply.usage_metadata["input_tokens"] > len(WORDS) + MOST


def test_langchain_uses_the_responses_api(address: str, http: httpx.Client) -> None:
    model = langchain(address, use_responses_api=True)
    assert model.invoke(WORDS).text == answer(http)
    assert "".join(chunk.text for chunk in model.stream(WORDS)) == answer(http)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_has_structured_output(address: str, method: Any) -> None:
    model = langchain(address, max_tokens=LONG).with_structured_output(Sight, method=method)
    assert isinstance(model.invoke(WORDS), Sight)


def llama_index(address: str, **more: Any) -> OpenAILike:
    given: dict[str, Any] = {"is_chat_model": True, "max_tokens": MOST, "temperature": 0.0, "max_retries": 0}
    return OpenAILike(model=MODEL, api_base=address, api_key="none", **given | more)


def test_llama_index_chats(address: str, http: httpx.Client) -> None:
    blocks = [ImageBlock(image=png(), image_mimetype="image/png"), TextBlock(text=WORDS)]
    turns = [ChatMessage(role="user", blocks=blocks)]
    expected, model = answer(http, shown()), llama_index(address)
    assert model.chat(turns).message.content == expected
    assert "".join(piece.delta or "" for piece in model.stream_chat(turns)) == expected


def test_llama_index_completes(address: str) -> None:
    assert llama_index(address, is_chat_model=False).complete(WORDS).text


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA])
def test_instructor_makes_models(address: str, mode: instructor.Mode) -> None:
    client = instructor.from_openai(OpenAI(base_url=address, api_key="none"), mode=mode)
    turns: Any = [{"role": "user", "content": WORDS}]
    asked: Any = {"model": MODEL, "messages": turns, "max_tokens": LONG, "max_retries": 0}
    if mode is instructor.Mode.TOOLS:
        asked["parallel_tool_calls"] = False
    if mode is not instructor.Mode.JSON:
        assert isinstance(client.chat.completions.create(response_model=Sight, **asked), Sight)
        return
    # Any object is JSON, and a random model writes another one: what it begins is told, and no refusal.
    with pytest.raises((InstructorRetryException, IncompleteOutputException)) as told:
        client.chat.completions.create(response_model=Sight, **asked)
    assert told.value.last_completion.choices[0].message.content.lstrip().startswith("{")  # type: ignore[union-attr]


def pydantic_ai(address: str, kind: type[Any] = OpenAIChatModel, most: int = MOST, **more: Any) -> Any:
    model = kind(MODEL, provider=OpenAIProvider(base_url=address, api_key="none"))
    return Agent(
        model,
        model_settings=ModelSettings(max_tokens=most, temperature=0.0, parallel_tool_calls=False),
        retries=0,
        **more,
    )


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
def test_pydantic_ai_runs(address: str, http: httpx.Client, kind: type[Any]) -> None:
    expected = answer(http, shown())
    for _ in range(2):
        # The picture first, as the others have it.
        run = pydantic_ai(address, kind).run_sync([BinaryContent(png(), media_type="image/png"), WORDS])
        assert run.output == expected
    usage = run.usage() if callable(run.usage) else run.usage
    assert usage.output_tokens == MOST and usage.cache_read_tokens > 0


def test_pydantic_ai_has_outputs(address: str) -> None:
    assert isinstance(pydantic_ai(address, most=LONG, output_type=Sight).run_sync(WORDS).output, Sight)


def agent(address: str, kind: type[Any], **more: Any) -> agents.Agent[Any]:
    agents.set_tracing_disabled(True)
    model = kind(MODEL, AsyncOpenAI(base_url=address, api_key="none", max_retries=0))
    most = more.pop("most", MOST)
    choice = more.pop("tool_choice", None)
    settings = agents.ModelSettings(
        max_tokens=most, temperature=0.0, tool_choice=choice, parallel_tool_calls=None if choice is None else False
    )
    return agents.Agent("a", model=model, model_settings=settings, **more)


@pytest.mark.parametrize("kind", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
def test_openai_agents_run(address: str, http: httpx.Client, words: str, kind: type[Any]) -> None:
    expected = answer(http, words)
    assert agents.Runner.run_sync(agent(address, kind), words).final_output == expected

    async def streamed() -> str:
        run = agents.Runner.run_streamed(agent(address, kind), words)
        async for _ in run.stream_events():
            pass
        return str(run.final_output)

    assert asyncio.run(streamed()) == expected


@pytest.mark.parametrize("kind", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
def test_openai_agents_use_tools(address: str, kind: type[Any]) -> None:
    seen: list[Any] = []

    @agents.function_tool
    def look(kind: Literal["tent", "moon"]) -> str:
        """Looks at a place."""
        seen.append(kind)
        return "a tent"

    asked = agent(address, kind, most=LONG, tools=[look], tool_choice="look", tool_use_behavior="stop_on_first_tool")
    assert agents.Runner.run_sync(asked, WORDS).final_output == "a tent" and seen
