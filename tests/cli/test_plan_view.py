"""A plan's table and map can be printed."""

from hypothesis import given
from rich.console import Console

from emblema.cli.plan_view import plan_map, plan_table
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.registry import parse
from tests.link.pieces import knowledges, prompts


@given(prompt=prompts(), known=knowledges())
def test_plans_can_be_read(prompt: Prompt, known: Knowledge) -> None:
    plan = parse("patch-4").plan(prompt, known)
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(plan_table(plan))
    console.print(plan_map(plan))
    assert str(plan.rows) in console.export_text()
