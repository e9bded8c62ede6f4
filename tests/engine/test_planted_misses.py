"""Planted misses on the bundled model: one cause each, and the reason, rows and detail that the reply tells of it."""

from collections.abc import Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from emblema import Engine
from emblema.link.lanes import Lane
from emblema.link.miss_reasons import MissReason
from emblema.link.misses import MissData
from emblema.link.policy.policy import Policy
from emblema.session.replies import Reply
from emblema.store import Store
from emblema.store.record import Terms
from emblema.store.settings import StoreSettings
from tests.planted_misses import PlantedMisses

QUESTION = "in which land is the moon ?"
QUIET = Policy.quiet()
IN_ORDER = replace(QUIET, query_share=0)
"""No second pass, so that a patch is missed where there is none."""


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@dataclass
class Plant:
    """What a miss is planted in: pictures that nobody has seen, and engines on one model.

    Attributes:
        reference: the bundled model.
        folder: an empty folder.
        draw: gives random numbers.
        open: closes engines and stores at the end.
    """

    reference: Engine
    folder: Path
    draw: np.random.Generator
    open: ExitStack

    def engine(self, store: Any = None, policy: Policy = QUIET, model: Any = None, processor: Any = None) -> Engine:
        made = Engine(
            model or self.reference.adapter.model, processor or self.reference.processor, store=store, policy=policy
        )
        return self.open.enter_context(made)

    def store(self, folder: Path | None = None, **options: Any) -> Store:
        options.setdefault("settings", StoreSettings(device="cpu", host_bytes=0))
        return self.open.enter_context(Store(folder, **options))

    def picture(self, side: int = 224) -> Image.Image:
        return Image.fromarray(self.draw.integers(0, 256, (side, side, 3), dtype=np.uint8))

    def other_model(self) -> Any:
        """Return the model with one weight that differs."""
        model = deepcopy(self.reference.adapter.model)
        with torch.no_grad():
            next(iter(model.parameters())).view(-1)[0] += 0.125
        return model


@pytest.fixture(params=[1, 20261])
def plant(reference: Engine, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Plant]:
    with ExitStack() as opened:
        yield Plant(reference, tmp_path / "store", np.random.default_rng(request.param), opened)


def misses(reply: Reply) -> list[MissData]:
    return [miss.data for miss in reply.usage.misses]


def item(picture: Image.Image, **settings: Any) -> list[dict[str, Any]]:
    """Return a conversation about a picture that is taken by some settings."""
    return [{"role": "user", "content": [{"type": "image", "image": picture, **settings}, QUESTION]}]


PLANTED = PlantedMisses[Plant]()
plants = PLANTED.add


@plants(MissReason.NEW)
def a_picture_that_was_never_shown(plant: Plant) -> list[MissData]:
    return misses(plant.engine().generate([plant.picture(), QUESTION]))


@plants(MissReason.NEW)
def a_picture_that_another_tenant_has(plant: Plant) -> list[MissData]:
    store, picture = plant.store(), plant.picture()
    plant.engine(store.tenant(b"one")).add(picture)
    return misses(plant.engine(store.tenant(b"two")).generate([picture, QUESTION]))


@plants(MissReason.CHANGED, "[1-4] of 64 tiles differ from one before")
def a_screenshot_with_another_pointer(plant: Plant) -> list[MissData]:
    engine, picture = plant.engine(), plant.picture()
    engine.add(picture)
    left, top = (int(value) for value in plant.draw.integers(0, 214, 2))
    picture.paste((255, 0, 0), (left, top, left + 10, top + 10))
    return misses(engine.generate([picture, QUESTION]))


@plants(MissReason.CHANGED, "1 of 64 tiles differ from one before")
def a_picture_of_which_one_byte_differs(plant: Plant) -> list[MissData]:
    engine, picture = plant.engine(), plant.picture()
    engine.generate([picture, QUESTION])
    place = tuple(int(value) for value in plant.draw.integers(0, 224, 2))
    red, green, blue = picture.getpixel(place)  # type: ignore[misc]
    picture.putpixel(place, (red ^ 1, green, blue))
    return misses(engine.generate([picture, QUESTION]))


@plants(MissReason.CHANGED, "another was here when the conversation was shorter")
def a_picture_that_a_client_encodes_again_each_turn(plant: Plant) -> list[MissData]:
    engine, picture, file = plant.engine(), plant.picture(), BytesIO()
    picture.save(file, "JPEG", quality=80)
    asked = item(picture)
    reply = engine.generate(asked)
    again = [*item(Image.open(file)), {"role": "assistant", "content": reply.text or "sand"}]
    return misses(engine.generate([*again, {"role": "user", "content": "and the boat ?"}]))


@plants(MissReason.OTHER_OPTIONS, "size 224x224 before, 112x112 now")
def a_picture_with_other_pixels_at_most(plant: Plant) -> list[MissData]:
    engine, picture = plant.engine(), plant.picture()
    engine.generate(item(picture))
    return misses(engine.generate(item(picture, max_pixels=112 * 112)))


@plants(MissReason.OTHER_OPTIONS, "size 512x512 before, 640x640 now")
def a_picture_whose_detail_was_low(plant: Plant) -> list[MissData]:
    engine, picture = plant.engine(), plant.picture(640)
    engine.generate(item(picture, detail="low"))
    return misses(engine.generate(item(picture)))


@plants(MissReason.OTHER_OPTIONS, r"processor\.image\.image_mean .* before, .* now")
def a_picture_by_another_processor(plant: Plant) -> list[MissData]:
    store, picture, processor = plant.store(), plant.picture(), deepcopy(plant.reference.processor)
    plant.engine(store).add(picture)
    processor.image_processor.image_mean = [0.25, 0.5, 0.5]
    return misses(plant.engine(store, processor=processor).generate([picture, QUESTION]))


@plants(MissReason.OTHER_OPTIONS, r"timing\.seconds per frame 1\.0 before, 0\.5 now")
def a_clip_at_another_pace(plant: Plant) -> list[MissData]:
    engine, frames = plant.engine(), [plant.picture(112), plant.picture(112)]
    engine.add(frames, kind="video", fps=1.0)
    content = [{"type": "video", "video": frames, "fps": 2.0}, QUESTION]
    return misses(engine.generate([{"role": "user", "content": content}]))


@plants(MissReason.OTHER_MODEL, "model [0-9a-f]{8} before, [0-9a-f]{8} now")
def a_picture_that_another_model_in_this_process_has(plant: Plant) -> list[MissData]:
    store, picture = plant.store(), plant.picture()
    plant.engine(store).add(picture)
    return misses(plant.engine(store, model=plant.other_model()).generate([picture, QUESTION]))


@plants(MissReason.OTHER_MODEL, "stored by model [0-9a-f]{8} in float32, this is [0-9a-f]{8}")
def a_picture_that_was_stored_before_the_weights_changed(plant: Plant) -> list[MissData]:
    picture = plant.picture()
    with plant.store(plant.folder) as store:
        plant.engine(store).add(picture)
    return misses(plant.engine(plant.store(plant.folder), model=plant.other_model()).generate([picture, QUESTION]))


@plants(MissReason.NOT_STORED, "shown before, and not stored since")
def a_picture_at_its_second_use(plant: Plant) -> list[MissData]:
    engine, picture = plant.engine(), plant.picture()
    engine.generate([picture, QUESTION])
    return misses(engine.generate(["look at this :", picture, QUESTION]))


@plants(MissReason.EVICTED)
def a_picture_that_left_memory(plant: Plant) -> list[MissData]:
    first, second = plant.picture(), plant.picture()
    with plant.engine() as measured:
        chunk = measured.add(first)
        size = chunk.bytes + sum(piece.encoded.bytes for piece in [chunk])  # type: ignore[union-attr]
    engine = plant.engine(plant.store(device_bytes=size * 3 // 2))
    engine.add(first)
    engine.add(second)
    return misses(engine.generate([first, QUESTION]))


@plants(MissReason.EVICTED)
def a_picture_that_left_the_disk(plant: Plant) -> list[MissData]:
    first, second = plant.picture(), plant.picture()
    with plant.store(plant.folder) as store:
        plant.engine(store).add(first)
        store.flush()
        size = store.statistics.disk_bytes
    store = plant.store(plant.folder, device_bytes=size * 3 // 2, disk_bytes=size * 3 // 2)
    engine = plant.engine(store)
    engine.add(second)
    store.flush()
    return misses(engine.generate([first, QUESTION]))


@plants(MissReason.EXPIRED)
def a_picture_whose_time_ended_while_the_server_was_down(plant: Plant) -> list[MissData]:
    clock, picture = Clock(), plant.picture()
    settings = StoreSettings(device="cpu", terms=Terms(seconds=60), clock=clock)
    with plant.store(plant.folder, settings=settings) as store:
        plant.engine(store).add(picture)
    clock.now += 61
    return misses(plant.engine(plant.store(plant.folder, settings=settings)).generate([picture, QUESTION]))


@plants(MissReason.EXPIRED)
def a_picture_whose_time_ended(plant: Plant) -> list[MissData]:
    clock, picture = Clock(), plant.picture()
    settings = StoreSettings(device="cpu", terms=Terms(seconds=60), clock=clock)
    engine = plant.engine(plant.store(settings=settings), IN_ORDER)
    engine.add(picture)
    clock.now += 61
    return misses(engine.generate(["look at this :", picture, QUESTION]))


@plants(MissReason.DELETED)
def a_picture_that_was_deleted(plant: Plant) -> list[MissData]:
    engine, picture = plant.engine(policy=IN_ORDER), plant.picture()
    chunk = engine.add(picture)
    engine.store.delete(chunk.id)
    return misses(engine.generate(["look at this :", picture, QUESTION]))


@plants(MissReason.NEW_ORDER, "its antecedents are not known", part=1)
def a_picture_behind_another_than_before(plant: Plant) -> list[MissData]:
    engine = plant.engine(policy=IN_ORDER)
    return misses(engine.generate([engine.add(plant.picture()), engine.add(plant.picture()), QUESTION]))


@plants(MissReason.SHORT, "it is too short for a patch", part=1)
def a_picture_of_few_rows(plant: Plant) -> list[MissData]:
    engine = plant.engine(policy=replace(IN_ORDER, share=0.01))
    return misses(engine.generate([engine.add(plant.picture()), engine.add(plant.picture()), QUESTION]))


@plants(MissReason.COSTS, "a second pass would cost as much as computing its rows", part=1)
def a_picture_that_is_as_fast_computed(plant: Plant) -> list[MissData]:
    engine = plant.engine()
    return misses(engine.generate([engine.add(plant.picture()), engine.add(plant.picture()), QUESTION]))


@plants(MissReason.DISTRUSTED, ".*query not taken: .*", part=1)
def a_picture_whose_lane_broke_the_bound(plant: Plant) -> list[MissData]:
    engine = plant.engine()
    for _ in range(40):
        engine.policy_runtime.record("image", Lane.QUERY, 3.0, False)
    return misses(engine.generate([engine.add(plant.picture()), engine.add(plant.picture()), QUESTION]))


@plants(MissReason.UNSURE, r"margin \S+ of 1", part=1)
def a_picture_of_an_answer_that_was_not_sure(plant: Plant) -> list[MissData]:
    engine = plant.engine()
    chunks = [engine.add(plant.picture(448)) for _ in range(4)]
    return misses(engine.generate([*chunks, QUESTION], policy=replace(QUIET, margin=1.0)))


@plants(MissReason.STRATEGY, "full")
def a_picture_that_the_strategy_computes(plant: Plant) -> list[MissData]:
    engine = plant.engine()
    return misses(engine.generate([engine.add(plant.picture()), QUESTION], strategy="full"))


@plants(MissReason.STRATEGY, "prefix", part=1)
def a_picture_behind_no_known_prefix(plant: Plant) -> list[MissData]:
    engine = plant.engine()
    return misses(
        engine.generate([engine.add(plant.picture()), engine.add(plant.picture()), QUESTION], strategy="prefix")
    )


@plants(MissReason.CHANGED, "[1-4] of 64 tiles differ from one before", part=1)
def a_screenshot_in_a_window_that_changed_a_little(plant: Plant) -> list[MissData]:
    engine, picture = plant.engine(), plant.picture()
    with engine.window() as window:
        window.append(picture)
        window.append("scrolled down .")
        changed = picture.copy()
        changed.paste((255, 0, 0), (3, 3, 13, 13))
        window.append(changed)
        return misses(window.ask(QUESTION))


@pytest.mark.parametrize("name", PLANTED.table)
def test_a_planted_miss_is_told_with_its_reason(plant: Plant, name: str) -> None:
    rows, _ = PLANTED.told(name, plant)
    assert rows > 0


def test_every_reason_is_planted_here_or_where_a_server_plans() -> None:
    assert set(MissReason) - PLANTED.reasons == {MissReason.LOST, MissReason.REFUSED} and len(PLANTED.table) >= 20


@pytest.mark.parametrize("strategy", ["auto", "blind", "mpic-8"])
def test_nothing_is_told_of_pictures_that_are_taken(plant: Plant, strategy: str) -> None:
    engine, picture = plant.engine(), plant.picture()
    engine.add(picture)
    assert misses(engine.generate([picture, QUESTION], strategy=strategy)) == [], "it leads the prompt"
    assert misses(engine.generate([picture, QUESTION], strategy=strategy)) == [], "the prompt is known"


def test_nothing_is_told_once_a_picture_that_came_again_was_stored(plant: Plant) -> None:
    engine, picture = plant.engine(policy=Policy(canary=0, learning=0)), plant.picture()
    engine.generate(["one", picture, QUESTION])
    engine.generate(["two", picture, QUESTION])
    engine.settle()
    assert misses(engine.generate([picture, QUESTION])) == []
