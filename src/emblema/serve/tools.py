"""Functions that a reply may call, as clients write them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from emblema.serve.client_body import ClientBody
from emblema.serve.faults import ServeError
from emblema.session.grammar import refuse_deep
from emblema.session.tool_calls import CALLS

TOOLS = 128
"""Functions of a request, at most."""
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class FunctionDefinition(ClientBody):
    """A function. With `strict` a keyword of its parameters that cannot be followed is refused, else passed over."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ToolDefinition(ClientBody):
    """A tool: a function."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(ClientBody):
    """A function by its name."""

    name: FunctionName


class NamedTool(ClientBody):
    """The tool that has to be called."""

    type: Literal["function"]
    function: NamedFunction


class CalledFunction(ClientBody):
    """The function of a call, with its arguments as JSON."""

    name: str
    arguments: str


class ToolCall(ClientBody):
    """A call that an assistant's message made."""

    passed = {"index": None}
    id: str = Field(max_length=200)
    type: Literal["function"] = "function"
    function: CalledFunction


class ToolUse(BaseModel):
    """What a request's reply may call, and whether it has to."""

    tools: list[ToolDefinition] = Field([], max_length=TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The functions that the reply may call, in OpenAI's form."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_unset=True) for tool in self.tools]

    @property
    def forced(self) -> list[dict[str, Any]]:
        """The functions of which one has to be called; none where the reply may be anything."""
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            return [tool for tool in self.offered if tool["function"]["name"] == name]
        return self.offered if self.tool_choice == "required" else []

    @property
    def most_calls(self) -> int:
        """Calls of a reply that is held to them, at most."""
        return CALLS if self.parallel_tool_calls and not isinstance(self.tool_choice, NamedTool) else 1

    def refuse_wrong(self) -> None:
        """Refuse parameters of too many levels, two tools of one name, and a choice of a tool that is not there.

        Raises:
            EmblemaError: there is one of them.
        """
        for tool in self.tools:
            refuse_deep(tool.function.parameters or {})
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise ServeError(400, "two tools have the same name", None, "tools")
        if self.tool_choice not in (None, "none", "auto") and not self.forced:
            said = "tool_choice: the tool that has to be called is not among the tools"
            raise ServeError(400, said, None, "tool_choice")
