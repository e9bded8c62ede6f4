"""Calls of functions: how a model is told what it may call, how it writes a call, and how that is read."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emblema.errors import PromptError
from emblema.session.grammar import json_rule

BEGIN, END = "<tool_call>", "</tool_call>"
"""Around a call, as Hermes, Qwen and many others write it; other models write its JSON alone."""
CALLS = 8
"""Calls that a reply is held to, at most."""
_EXPLAINED = f"""You may call functions. To call one, answer with its name and arguments as JSON:
{BEGIN}
{{"name": "…", "arguments": {{…}}}}
{END}
What it gives comes as <tool_response>. The functions are:
"""
Tool = Mapping[str, Any]
"""A function in OpenAI's form: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call that a model wrote; the arguments are JSON as text."""

    name: str
    arguments: str


def rules_of_calls(tools: Sequence[Tool], *, marked: bool, most: int = CALLS, answer: str | None = None) -> str:
    """Return rules in Lark's form of a reply that calls functions.

    Args:
        tools: that may be called; the arguments are what their `parameters` accept.
        marked: whether the model writes marks around a call, or its JSON alone.
        most: calls of one reply.
        answer: the rule of what the reply may be in place of calls; None where it has to call.

    Raises:
        PromptError: parameters have too many levels.
    """
    key, between = ("arguments", "\n") if marked else ("parameters", "; ")
    opening, closing = (f"{BEGIN}\n", f"\n{END}") if marked else ("", "")
    more = f" ({_quoted(between)} call){{0,{most - 1}}}" if most > 1 else ""
    rules = [f"start: call{more}" if answer is None else f"start: answer | call{more}"]
    rules += [] if answer is None else [f"answer: {answer}"]
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
    for index, tool in enumerate(tools):
        function = tool["function"]
        begun = f'{opening}{{"name": {json.dumps(function["name"])}, "{key}": '
        rules.append(f"call_{index}: {_quoted(begun)} arguments_{index} {_quoted('}' + closing)}")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        rules.append(f"arguments_{index}: {json_rule(parameters, strict=bool(function.get('strict')))}")
    return "\n".join(rules) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text)


class CallReader:
    """Reads calls out of a reply's text as it is made: in marks, or the whole reply as JSON of calls.

    Args:
        names: of the functions that may be called; what names another is text.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._text, self._given = "", 0

    def push(self, text: str) -> str:
        """Take more of the reply, and return what is certain not to be a call nor the white space before one."""
        self._text += text
        if self._text.lstrip()[:1] in ("", "{", "["):
            return ""
        end = self._text.find(BEGIN)
        if end < 0:
            held = next((size for size in range(len(BEGIN) - 1, 0, -1) if self._text.endswith(BEGIN[:size])), 0)
            end = len(self._text) - held
        return self._give(len(self._text[:end].rstrip()))

    def finish(self) -> tuple[str, list[FunctionCall]]:
        """Return the rest of the text that is no call, and the calls. Where one cannot be read, all of it is text."""
        before, begun, marked = self._text.partition(BEGIN)
        texts = [part.partition(END)[0] for part in marked.split(BEGIN)] if begun else [self._text]
        try:
            calls = [call for text in texts for call in _calls_of(text)]
            if not self._names.issuperset(call.name for call in calls):
                calls = []
        except (ValueError, RecursionError):
            calls = []
        return self._give(len(before.rstrip()) if calls and begun else 0 if calls else len(self._text)), calls

    def _give(self, until: int) -> str:
        piece = self._text[self._given : until]
        self._given = max(self._given, until)
        return piece


def _calls_of(text: str) -> Iterator[FunctionCall]:
    """Yield the calls of a text that is JSON of them: an object, several with `;` between them, or a list.

    Raises:
        ValueError: it is anything else.
    """
    rest = text.strip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        for call in value if isinstance(value, list) else [value]:
            arguments = call.get("arguments", call.get("parameters")) if isinstance(call, dict) else None
            if arguments is None or not isinstance(call.get("name"), str):
                raise ValueError("this is no call")
            written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            # A model may write half of a surrogate pair, which no reply can hold.
            yield FunctionCall(call["name"], written.encode("utf-8", "replace").decode())
        rest = rest[end:].lstrip("; \n\t")


def read_calls(calls: Any, index: int) -> list[dict[str, Any]]:
    """Return the calls of an assistant's message, number `index`, as templates take them: with arguments by name.

    Raises:
        PromptError: they are of another form.
    """
    try:
        read = []
        for call in calls:
            function = call["function"]
            given = function["arguments"]
            arguments = json.loads(given or "{}") if isinstance(given, str) else given
            if not isinstance(arguments, Mapping) or not isinstance(function["name"], str):
                raise TypeError
            function = {"name": function["name"], "arguments": dict(arguments)}
            read.append({"id": str(call.get("id", "")), "type": "function", "function": function})
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError) as error:
        raise PromptError(
            f"message {index} has tool_calls of another form: give each a function with a name, and arguments that are "
            "a JSON object as text"
        ) from error
    return read


def in_plain_turns(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], *, system: bool
) -> list[Mapping[str, Any]]:
    """Return a conversation with functions and calls as text, for a chat template that has no place for them.

    Args:
        messages: in OpenAI's form.
        tools: that may be called.
        system: whether the template takes a system turn.
    """
    turns: list[dict[str, Any]] = []
    answered = False
    for index, message in enumerate(messages):
        items = _items(message.get("content"))
        if message.get("role") == "tool":
            items = ["<tool_response>\n", *items, "\n</tool_response>"]
            if answered:
                turns[-1]["content"] += ["\n", *items]
                continue
        calls = read_calls(message.get("tool_calls") or (), index)
        written = [f"{BEGIN}\n{json.dumps(call['function'], ensure_ascii=False)}\n{END}" for call in calls]
        if written:
            items += ["\n" * bool(items) + "\n".join(written)]
        answered = message.get("role") == "tool"
        turns.append({"role": "user" if answered else message.get("role"), "content": items})
    if tools:
        told = _EXPLAINED + "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        if turns[0]["role"] != "system" and system:
            turns.insert(0, {"role": "system", "content": [told]})
        else:
            turns[0]["content"] = [told, "\n\n", *turns[0]["content"]]
    return list(turns)


def _items(content: Any) -> list[Any]:
    if content is None or content == "":
        return []
    return list(content) if isinstance(content, list | tuple) else [content]


def texts_in(value: Any) -> list[str]:
    """Return every text of a JSON value, however deep it is, names of fields included."""
    texts, left = [], [value]
    while left:
        each = left.pop()
        if isinstance(each, str):
            texts.append(each)
        elif isinstance(each, Mapping):
            left += [*map(str, each), *each.values()]
        elif isinstance(each, list | tuple):
            left += each
    return texts
