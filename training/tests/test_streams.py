"""Training on streams sees what the stock model sees; labels, windows and packed positions are what they say."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.tasks.streams import (
    QUESTION_KINDS,
    STREAM_KINDS,
    GeneratedStream,
    TimedQuestion,
    ask,
    generate,
    questions_of,
    seen,
)
from benchmarks.tasks.tiles import COLOUR_COUNT, FIRST_LAND, ICON_NAMES, assemble
from benchmarks.tasks.world import COLOUR_NAMES, LANDS
from emblema.eval.demo_media import WALK
from emblema.media.video import load_video
from emblema.models.load import load_model
from training.demo_media import WALK_FRAMES, write_walk
from training.families import RECIPES
from training.pictures import tile_pool
from training.streams.card import learnt
from training.streams.curriculum import STAGES, make_batch
from training.streams.forward import cell_features, forward
from training.streams.hints import ROLES, SINK, hints
from training.streams.labels import NOTHING, UNSAID, label
from training.streams.measure import measured
from training.streams.rows import FORMS, Batch, Setting, collate, form_of, window_mask
from training.streams.train import blend, main


@cache
def model() -> torch.nn.Module:
    return load_model("reference")[0]


@cache
def features() -> torch.Tensor:
    return cell_features(RECIPES["reference"], model(), tile_pool(np.random.default_rng(0), 1))


def stream(kind: str = "movie", frames: int = 12) -> tuple[GeneratedStream, tuple[TimedQuestion, ...]]:
    (made,) = generate(kind, frames, 8, 1)
    return made, questions_of(made)


def batch_of(setting: Setting) -> Batch:
    made, asked = stream()
    return collate(np.random.default_rng(0), [made], [asked], setting)


def test_a_stream_is_laid_out_and_computed_as_by_the_stock_model() -> None:
    """Every frame, its tiles clean, through the stock tower as a picture; then one prompt through the stock decoder."""
    made, asked = stream()
    batch = batch_of(Setting())
    stock = model()
    _, processor = load_model("reference")
    pictures = [assemble(tiles) for tiles in made.tiles()]
    given = processor.image_processor(images=pictures, return_tensors="pt")
    assert given["image_grid_thw"].tolist() == [[1, 4, 4]] * len(made)
    with torch.no_grad():
        cells = stock.model.visual(given["pixel_values"], grid_thw=given["image_grid_thw"])
        cells = cells if isinstance(cells, torch.Tensor) else cells.pooler_output
        output = forward(stock, features(), batch)
        length, question = batch.longest, 0
        rows = [
            *range(batch.context),
            *range(batch.context + question * length, batch.context + (question + 1) * length),
        ]
        ids = batch.table[:, rows].clone()
        ids[:, batch.opening : batch.context] = stock.config.image_token_id
        embeds = stock.get_input_embeddings()(ids)
        embeds[:, batch.opening : batch.context] = cells.reshape(1, -1, cells.shape[-1])
        logits = stock(inputs_embeds=embeds, position_ids=batch.positions[:, :, rows]).logits[0, batch.context :]
        trained = output.asked[:length] @ output.words.T
    assert float((logits - trained).abs().max()) < 1e-3 * float(logits.std())


@pytest.mark.parametrize("kind", STREAM_KINDS)
def test_labels_say_what_the_frames_show(kind: str) -> None:
    made, _ = stream(kind, 60)
    held, tiles = label(made), made.tiles().reshape(60, 4)
    np.testing.assert_array_equal(held.tiles, tiles)
    np.testing.assert_array_equal(held.land[:, 0], (tiles[:, 0] - FIRST_LAND) // COLOUR_COUNT)
    icons = (tiles[:, 1:] - 1) // COLOUR_COUNT - 1
    np.testing.assert_array_equal(held.glyph[:, 1:], np.where(icons < 0, NOTHING, icons))
    changed = np.ones(60, dtype=bool)
    changed[1:] = held.land[1:, 0] != held.land[:-1, 0]
    np.testing.assert_array_equal(held.begins[:, 0], changed)
    assert (held.before[~changed] == UNSAID).all() and (held.before[0] == UNSAID).all()
    for frame in np.flatnonzero(changed)[1:]:
        assert (held.before[frame] == held.land[frame - 1, 0]).all()
    visits = seen(made, 60).visits
    for stay in made.stays:
        assert held.order[stay.begin, 0] == min(4, [each.begin for each in visits[stay.land]].index(stay.begin))


def test_every_wording_has_its_form() -> None:
    found = {form_of(each) for kind in STREAM_KINDS for each in stream(kind, 96)[1]}
    assert found == set(range(len(FORMS)))
    with pytest.raises(ValueError, match="no form"):
        form_of(TimedQuestion("recent", "who goes there ?", "me", 1, ()))


def test_hints_look_at_what_the_words_are_about() -> None:
    roles = set()
    for kind in STREAM_KINDS:
        made, _ = stream(kind, 128)
        held, shown = label(made), seen(made, 128)
        for question in ask(np.random.default_rng(0), made, 128, dict.fromkeys(QUESTION_KINDS, 200)):
            said = question.text.split()
            named = [word for word in said if word in ICON_NAMES]
            for hint in hints(shown, question):
                roles.add(hint.role)
                for frame, cell in hint.looks:
                    if (frame, cell) == SINK:
                        assert hint.role == "count"
                        continue
                    land = LANDS[held.land[frame, cell]]
                    if hint.role in ("icon", "order"):
                        icon = said[hint.place] if hint.role == "icon" else named[0]
                        assert held.glyph[frame, cell] == ICON_NAMES.index(icon) and held.begins[frame, cell]
                        assert land in hint.says
                    elif hint.role == "count":
                        assert land == said[hint.place] and held.begins[frame, cell]
                    else:
                        assert land == question.answer
                        assert hint.role == "here" or LANDS[held.before[frame, 0]] == said[hint.place]
                if hint.role == "colour":
                    assert hint.says == (question.answer,) and question.answer in COLOUR_NAMES
    assert roles == set(ROLES)


def test_looks_are_rows_that_the_question_sees() -> None:
    made, asked = stream(frames=60)
    batch = collate(np.random.default_rng(0), [made], [asked], Setting(keep=0.1, recent=2))
    which, row, share = batch.looks.unbind(1)
    for index, place, part in zip(which.long(), row.long(), share, strict=True):
        owner, asking, _ = batch.looked[index]
        assert batch.sees[owner, 0, asking, place] and 0 < part <= 1
    torch.testing.assert_close(
        torch.zeros(len(batch.looked), dtype=torch.float64).index_add(0, which.long(), share),
        torch.ones(len(batch.looked), dtype=torch.float64),
    )


def test_questions_do_not_see_frames_behind_their_time_or_each_other() -> None:
    made, _ = stream()
    asked = questions_of(made, (4, 12))
    batch = collate(np.random.default_rng(0), [made], [asked], Setting())
    for place, question in enumerate(asked):
        row = batch.sees[0, 0, place * batch.longest + batch.longest - 1]
        frames = row[batch.opening : batch.context].view(len(made), 4)
        assert frames[: question.at].all() and not frames[question.at :].any()
        others = row[batch.context :].view(len(asked), batch.longest).any(1)
        assert others.tolist() == [each == place for each in range(len(asked))]
        first = batch.positions[0, 0, batch.context + place * batch.longest]
        shown = batch.positions[:, 0, batch.opening : batch.opening + 4 * question.at]
        assert int(first) == int(shown.max()) + 1


def test_a_frame_sees_the_opening_and_its_window() -> None:
    mask = window_mask(opening=2, frames=6, window=2)
    assert mask is not None
    row = mask[2 + 4 * 4 + 1]
    assert row[:2].all()
    assert row[2:].tolist() == [False] * 8 + [True] * 10 + [False] * 6
    assert window_mask(2, 6, 6) is None and window_mask(2, 6, None) is None


def test_packed_positions_are_native_ones_where_every_frame_is_kept() -> None:
    whole, packed = batch_of(Setting()), batch_of(Setting(keep=1.0))
    assert packed.read is not None and torch.equal(packed.read, whole.positions[:, :, : whole.context])
    with torch.no_grad():
        outputs = [forward(model(), features(), each).asked for each in (whole, packed)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-4)


def test_what_a_packed_question_sees_lies_side_by_side_and_holds_its_evidence() -> None:
    made, asked = stream(frames=60)
    batch = collate(np.random.default_rng(0), [made], [asked], Setting(keep=0.1, recent=2))
    assert batch.read is not None
    kept = batch.sees[0, 0, 0, batch.opening : batch.context].view(60, 4)[:, 0]
    assert 0 < int(kept.sum()) < 60 and bool(kept[-2:].all())
    places = batch.read[0, 0, batch.opening : batch.context].view(60, 4)[:, 0][kept]
    assert places.tolist() == [batch.opening + 2 * rank for rank in range(len(places))]
    for question in asked:
        assert all(bool(kept[begin]) for begin, _ in question.evidence)


def test_batches_of_every_stage_are_of_about_the_rows_asked_for() -> None:
    for stage in range(len(STAGES)):
        batch = make_batch(np.random.default_rng(stage), stage, 3000, 1)
        longest_pair = 2 * (4 * max(STAGES[stage]) + 1000)
        assert 1000 < batch.table.numel() < max(6000, longest_pair)
        assert batch.table.max() < 794 + len(features())


def test_every_question_is_measured_once_under_its_kind_its_wording_and_its_stream() -> None:
    held = measured(model(), [8], 3, (None, 4))["8"]
    assert list(held) == ["full", "window 4"]
    for figures in held.values():
        asked = figures["all"]["questions"]
        for names in (QUESTION_KINDS, FORMS, STREAM_KINDS):
            assert sum(figures[name]["questions"] for name in names) == asked > 0
        right = sum(figures[kind]["accuracy"] * figures[kind]["questions"] for kind in QUESTION_KINDS)
        assert right / asked == pytest.approx(figures["all"]["accuracy"], abs=1e-3)


def test_a_kind_of_stream_is_listed_only_if_every_trained_length_holds_the_bar() -> None:
    def figures(accuracy: float) -> dict[str, dict[str, float]]:
        return {kind: {"accuracy": accuracy} for kind in STREAM_KINDS}

    held = {"64": {"full": figures(0.95)}, "1024": {"full": figures(0.9)}, "2048": {"full": figures(0.2)}}
    assert learnt(held) == list(STREAM_KINDS)
    held["1024"]["full"]["live"] = {"accuracy": 0.89}
    assert learnt(held) == ["ego", "movie"]


def test_blended_weights_lie_between_what_was_trained_and_what_it_started_from() -> None:
    folder = RECIPES["reference"].folder.with_name("reference-stream")
    trained, start = load_model(folder)[0], load_model(folder)[0]
    with torch.no_grad():
        for weight in trained.parameters():
            weight += 1.0
    blend(trained, folder, 0.25)
    for blended, earlier in zip(trained.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(blended, earlier + 0.25, rtol=0.0, atol=1e-6)


@pytest.mark.nightly
def test_training_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*more: str) -> dict[str, object]:
        options = [
            "--work",
            str(tmp_path / "work"),
            "--out",
            str(tmp_path / "out"),
            "--tokens",
            "600",
            "--threads",
            "1",
        ]
        monkeypatch.setattr("sys.argv", ["train", *options, *more])
        main()
        held = torch.load(tmp_path / "work" / "checkpoint.pt", weights_only=True)
        return dict(held["state"])

    first = run("--minutes", "0.1")
    again = run("--minutes", "0.2", "--resume")
    assert int(str(again["step"])) > int(str(first["step"])) > 0
    assert load_model(tmp_path / "out")[0].config.vision_config.patch_size == 14


def test_the_walk_of_the_package_is_written_by_its_script_and_small(tmp_path: Path) -> None:
    write_walk(tmp_path / "walk.mp4")
    own, bundled = (load_video(path, fps=0.5) for path in (tmp_path / "walk.mp4", WALK))
    assert len(own.frames) == len(bundled.frames) == WALK_FRAMES
    for frame, other in zip(own.frames, bundled.frames, strict=True):
        assert np.abs(np.asarray(frame, dtype=float) - np.asarray(other, dtype=float)).mean() < 2
    assert WALK.stat().st_size < 25_000
