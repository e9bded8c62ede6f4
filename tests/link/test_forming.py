"""Forming: the rows that it runs are counted, and what is missing is named."""

from dataclasses import replace

import pytest

from emblema.errors import PlanError
from emblema.kv.keys import ArtifactKey
from emblema.link.context import LinkContext
from emblema.link.executor import Executor
from emblema.link.forming import form_missing
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.registry import parse
from emblema.link.taken_rows import LinkJob
from tests.engine.engines import engine, two_pages
from tests.link.pieces import knowledge


def test_pieces_that_are_missing_are_named() -> None:
    name = "llava"
    prompt, executor = two_pages(name), Executor(engine(name).adapter)
    layouts = engine(name).adapter.layouts
    for strategy in ("orbit-4", "patch-4"):
        plan = parse(strategy).plan(prompt, replace(knowledge(), layouts=layouts))
        with pytest.raises(PlanError, match="a patch that was not handed over"):
            executor.run(LinkJob(plan, prompt))
    context = LinkContext(Knowledge("model", layouts, lambda key: None, lambda prompt: None), {})
    plan = replace(plan, forming=(ArtifactKey("model", "a" * 64),))
    with pytest.raises(PlanError, match="does not hold"):
        form_missing(executor, prompt, plan, context)


@pytest.mark.parametrize(("strategy", "fronts"), [("patch-4", (1,)), ("orbit-4", (0, 1))])
def test_the_rows_that_forming_ran_are_counted(strategy: str, fronts: tuple[int, ...]) -> None:
    """Those of forwards up to the end of some picture."""
    prompt, executor = two_pages("llava"), Executor(engine("llava").adapter)
    layouts = executor.adapter.layouts
    stored = Knowledge("model", layouts, lambda key: None, lambda prompt: None)
    context = LinkContext(stored, {chunk.id: chunk.rows for _, chunk in prompt.chunk_segments})
    plan = parse(strategy).plan(prompt, stored)
    made, rows = form_missing(executor, prompt, plan, context)
    assert set(plan.forming) == set(made) and all(context.patch(key) is made[key] for key in made)
    assert rows == sum(prompt.chunk_segments[front][0].stop for front in fronts)
    again = form_missing(executor, prompt, replace(plan, forming=()), context)
    assert again == ({}, 0)
