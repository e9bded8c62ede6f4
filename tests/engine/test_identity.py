"""Two pieces that differ in anything that changes the KV never share an id."""

from copy import deepcopy

from PIL import Image

from emblema import Engine


def test_a_pixel_a_shape_and_a_resizing_make_another_id(reference: Engine) -> None:
    plain = Image.new("RGB", (128, 128), "red")
    other = plain.copy()
    other.putpixel((127, 127), (255, 0, 1))
    pictures = [plain, other, *(Image.new("RGB", size, "red") for size in ((30, 150), (150, 30)))]
    ids = [reference.add(picture).id for picture in pictures]
    processor = deepcopy(reference.processor)
    part = processor.image_processor
    part.rescale_factor = part.rescale_factor / 2
    ids.append(Engine(reference.adapter.model, processor).add(plain).id)
    assert len(set(ids)) == len(ids) == 5
    assert Engine(reference.adapter.model, deepcopy(reference.processor)).add(plain).id == ids[0]
