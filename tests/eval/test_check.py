"""The fidelity report: closer with rank, exact at full rank, and a sentence that fits the figures."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.eval.check import BLIND, FULL, QUERY, SETTINGS, CheckResult, CheckRow, measure, spread, teach_policy
from emblema.eval.check_report import fidelity_table, new_combinations, report, selfcheck_table, verdict
from emblema.eval.demo_media import demo_media
from emblema.eval.figures import plain, write_figures
from emblema.eval.metrics import Share
from emblema.kv.chunk import Chunk
from emblema.link.lanes import Lane
from emblema.link.policy.certificate import PROVISIONAL
from tests.engine.engines import AT_ONCE
from tests.families import loaded, picture

pytestmark = pytest.mark.slow
MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(MODEL)


@pytest.fixture(scope="module")
def pictures(engine: Engine) -> list[Chunk]:
    media = demo_media()
    added = [engine.add(media.folder / name) for name in media.sample(maps=1)]
    return [one for one in added if isinstance(one, Chunk)]


@pytest.fixture(scope="module")
def result(engine: Engine, pictures: list[Chunk]) -> CheckResult:
    media = demo_media()
    asked = [one.text for one in media.about(media.sample(maps=1))]
    return measure(engine, pictures, asked[:3], ranks=(1, 8, 1000), orders=2, answer_tokens=3)


def test_orders_are_different_and_the_given_one_comes_first() -> None:
    assert spread(3, 100) == [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    found = spread(12, 5)
    assert len(set(found)) == 5
    assert found[0] == tuple(range(12))


def test_re_prefill_is_the_ceiling_and_full_rank_reaches_it(result: CheckResult) -> None:
    for setting in SETTINGS:
        assert result.row(setting, FULL).divergence == 0
        assert result.row(setting, BLIND).eta == 0
        whole = result.row(setting, "patch-1000")
        assert whole.divergence < 1e-8
        assert whole.first_token == whole.greedy == 1
        losses = [result.row(setting, name).divergence for name in ("patch-1", "patch-8", "patch-1000")]
        assert losses == sorted(losses, reverse=True)


def test_bytes_and_rows_are_those_of_the_patches(result: CheckResult, pictures: list[Chunk]) -> None:
    for setting in SETTINGS:
        assert result.row(setting, BLIND).patch_share == 0
        shares = [result.row(setting, name).patch_share for name in ("patch-1", "patch-6%", "patch-25%", "patch-1000")]
        assert shares == sorted(shares)
        assert shares[1] <= 0.06
        assert shares[2] <= 0.25
        assert result.row(setting, "patch-1000").rank == min(pictures[0].tokens, 192)
        assert result.row(setting, BLIND).computed < 20 < result.row(setting, FULL).computed


def test_a_second_pass_says_how_sure_it_is(result: CheckResult) -> None:
    rows = [result.row(setting, QUERY.name) for setting in SETTINGS]
    sure = sum(round((1 - row.unsure) * row.prompts) for row in rows if row.unsure is not None)
    every = result.samples[QUERY.name]
    assert len(every) == sum(row.prompts for row in rows), "those that would not stand are told apart by their margin"
    assert sum(sample.margin >= PROVISIONAL for sample in every) == sure > 0
    assert all(row.wrong is not None and 0 <= row.wrong <= 1 and row.eta > 0 for row in rows)
    assert all(row.computed < result.row(row.setting, FULL).computed for row in rows)
    assert f"sure on {sure} of {sum(row.prompts for row in rows)} prompts" in new_combinations(result)
    assert all(result.row(setting, BLIND).unsure is None for setting in SETTINGS)


def test_one_picture_or_no_question_is_refused(engine: Engine, pictures: list[Chunk]) -> None:
    with pytest.raises(PromptError, match="two or more"):
        measure(engine, pictures[:1], ["what ?"])
    with pytest.raises(PromptError, match="no questions"):
        measure(engine, pictures, [])


@pytest.mark.slow
def test_the_report_is_written(engine: Engine, result: CheckResult, tmp_path: Path) -> None:
    path = write_figures(report("reference", engine, result, ["a.png", "b.png"]), tmp_path / "check.json")
    found = json.loads(path.read_text())
    assert found["verdict"] == verdict(result)
    assert found["new_combinations"] == new_combinations(result)
    assert len(found["rows"]) == 2 * 8
    assert all(check["passed"] for check in found["selfcheck"])
    assert fidelity_table(result).row_count == 2 * 9
    assert selfcheck_table("reference", engine).row_count == len(engine.selfcheck.checks)


@pytest.mark.parametrize(
    "name", ["llava", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("gemma3", "kimi_k25"))]
)
def test_other_families_are_measured_and_full_rank_reaches_re_prefill(name: str) -> None:
    item = loaded(name)
    engine = Engine(item.model, item.bundle)
    added = [engine.add(picture(*size, seed=seed)) for seed, size in enumerate(item.case.sizes[:2])]
    found = measure(engine, [one for one in added if isinstance(one, Chunk)], ["what is this"], ranks=(1000,), orders=2)
    assert len(found.orders) == 2
    for setting in SETTINGS:
        whole = found.row(setting, "patch-1000")
        assert whole.divergence < 1e-8
        assert whole.first_token == 1


def test_a_policy_learns_what_was_measured(engine: Engine, result: CheckResult) -> None:
    own = Engine(engine.adapter.model, engine.processor, policy=AT_ONCE)
    plateau, count = teach_policy(result, own.policy_runtime)
    assert plateau is not None and plateau == result.plateau and plateau in {row.rank for row in result.rows}
    patched = result.samples[next(r.strategy for r in result.rows if r.rank == plateau)]
    queried = result.samples[QUERY.name]
    assert len(patched) == len(queried) == 2 * 2 * 3 and count == len(patched) + len(queried)
    lines = {one.lane: one for one in own.policy_runtime.lane_reports}
    assert lines.keys() == {Lane.PATCH, Lane.QUERY} and {one.kind for one in lines.values()} == {"image"}
    for lane, samples in ((Lane.PATCH, patched), (Lane.QUERY, queried)):
        standing = [sample for sample in samples if sample.margin >= PROVISIONAL]
        assert lines[lane].samples == len(standing) > 0
        assert lines[lane].kl == pytest.approx(sum(one.kl for one in standing) / len(standing))
    assert own.policy_runtime.trusts("image", "patch")
    # Patches are formed with that rank from now on.
    pages = [own.add(picture(56, 56, seed=seed)) for seed in range(2)]
    own.prefill([*pages, "what colour is red ?"])
    own.settle()
    keys = [key for page in pages if isinstance(page, Chunk) for key in own.store.artifact_keys(page.id)]
    found = [patch for key in keys if (patch := own.store.find_patch(key)) is not None]
    assert found and {patch.rank for patch in found} == {min(plateau, pages[0].tokens)}


@pytest.mark.parametrize(
    ("losses", "plateau"),
    [
        ({1: 0.5, 4: 0.07, 16: 0.01, 64: 0.0}, 16),
        ({1: 0.5, 4: 0.06, 16: 0.01, 64: 0.0}, 4),
        ({4: 0.5, 16: 0.5}, 4),
        ({4: 1.5, 16: 1.0}, None),
        ({}, None),
    ],
)
def test_the_plateau_is_the_smallest_rank_that_does_what_the_largest_does(
    losses: dict[int, float], plateau: int | None
) -> None:
    """In every setting: `slid` levels off at once here, `visible` where it says."""
    rows = [replace(line(one, BLIND, 1.0, 0, 0), rank=0) for one in SETTINGS]
    for rank, loss in losses.items():
        for setting in SETTINGS:
            mean = min(loss, 0.0 if loss < 1 else loss) if setting == "slid" else loss
            rows.append(replace(line(setting, f"patch-{rank}", mean, 0, 0.1), rank=rank))
    assert CheckResult(2, ("?",), ((0, 1),), 3, tuple(rows)).plateau == plateau


def line(setting: str, strategy: str, divergence: float, greedy: float, share: float) -> CheckRow:
    flips = Share(math.nan, 0)
    losses = (divergence, divergence, 1 - divergence)
    return CheckRow(setting, strategy, 10, *losses, greedy, greedy, flips, share, 5.0, 4)


def fidelity(*rows: tuple[str, float, float, float]) -> CheckResult:
    lines = [line(setting, *row) for setting in SETTINGS for row in (("full", 0.0, 1.0, 0.0), *rows)]
    return CheckResult(2, ("?",), ((0, 1),), 3, tuple(lines))


def test_the_sentence_fits_the_figures() -> None:
    near = fidelity(("blind", 1e-4, 1.0, 0.0), ("patch-4", 0.0, 1.0, 0.1))
    assert "no patch is needed" in verdict(near)
    mended = fidelity(("blind", 1.0, 0.5, 0.0), ("patch-64", 0.0, 1.0, 0.9), ("patch-4", 0.01, 1.0, 0.1))
    assert "changes the first token on 10 of 20 prompts; patch-4 (10% of the KV's bytes)" in verdict(mended)
    heavy = fidelity(("blind", 1.0, 0.5, 0.0), ("patch-900", 0.0, 1.0, 1.3), ("patch-4", 2.0, 0.5, 0.1))
    assert "patch-4 (10% of the KV's bytes), removes none of the KL and leaves 10" in verdict(heavy)
    short = fidelity(("blind", 1.0, 0.5, 0.0), ("patch-4", 0.3, 0.8, 0.1))
    assert "leaves 4 of 20 whole answers changed" in verdict(short)


def test_an_eta_that_is_not_a_number_is_null_in_the_report(engine: Engine, result: CheckResult) -> None:
    rows = tuple(replace(row, eta=math.nan) for row in result.rows)
    found = report("reference", engine, replace(result, rows=rows), [])
    assert json.loads(json.dumps(plain(found), allow_nan=False))["rows"][0]["eta"] is None
