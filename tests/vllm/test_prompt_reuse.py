"""What a prompt's pages are worth to later prompts, by tenant."""

from emblema.link.prompt import Prompt
from emblema.served.request_plan import ChunkStubs, build_prompt
from emblema.vllm.prompt_reuse import MOST_TENANTS, PromptReuse
from tests.vllm.requests import SPEC, request

STUBS = ChunkStubs(SPEC)
ALICE, BOB = b"alice", b"bob"


def prompt(*names: str) -> Prompt:
    return build_prompt(request(*names), STUBS)


def test_rows_count_as_found_where_the_prompt_before_was_linked_and_left_none() -> None:
    """Else a tenant whose conversations are linked looks as if nothing of them ever came again."""
    reuse = PromptReuse(shared=True)
    for number in range(40):
        first, second = f"a{number}", f"b{number}"
        reuse.observe(ALICE, prompt(first), 0, linked=True)
        reuse.observe(ALICE, prompt(first, second), 0, linked=True)
        reuse.observe(ALICE, prompt(first, second, "c"), 0, linked=True)
    assert reuse.uses(ALICE) > 0.9


def test_rows_that_the_cache_should_have_and_has_not_do_not_count() -> None:
    """Prompts that were computed in full, and whose pages are gone: the cache is too small for them."""
    reuse = PromptReuse(shared=True)
    for number in range(80):
        reuse.observe(ALICE, prompt(f"a{number}"), 0, linked=False)
        reuse.observe(ALICE, prompt(f"a{number}", "b"), 0, linked=False)
    assert reuse.uses(ALICE) < 0.1


def test_each_tenant_has_its_own() -> None:
    reuse = PromptReuse(shared=True)
    for number in range(80):
        reuse.observe(ALICE, prompt(f"a{number}", f"b{number}"), 0, linked=True)
    assert reuse.uses(ALICE) < 0.1 and reuse.uses(BOB) == 1.0, "of who is new it is not known"
    for number in range(MOST_TENANTS):
        reuse.observe(str(number).encode(), prompt("a"), 0, linked=False)
    assert reuse.uses(ALICE) == 1.0


def test_nothing_is_found_again_without_a_prefix_cache() -> None:
    reuse = PromptReuse(shared=False)
    reuse.observe(ALICE, prompt("a"), 0, linked=True)
    assert reuse.uses(ALICE) == 0.0
