"""Every input that fuzzing begins from, and every one that failed once, without the fuzzer."""

import pytest

from tests.fuzz.targets import FOUND, MODULES, inputs_of, target_of


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_inputs_that_are_known_pass(name: str) -> None:
    inputs = [b"", *inputs_of(name)]
    assert len(inputs) > 1 and max(map(len, inputs)) <= 100_000
    for data in inputs:
        target_of(name).run(data)


def test_what_was_found_belongs_to_a_target() -> None:
    if FOUND.exists():
        assert {folder.name for folder in FOUND.iterdir()} <= MODULES.keys()
