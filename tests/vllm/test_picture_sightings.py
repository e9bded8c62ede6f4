"""How many prompts share what it costs to prefill a picture alone."""

from emblema.vllm.picture_sightings import MOST_PICTURES, MOST_TENANTS, PictureSightings

ALICE = b"alice"


def test_a_sliding_window_shows_each_picture_as_often_as_it_is_long() -> None:
    sightings = PictureSightings()
    assert sightings.mean(ALICE) == 1.0
    for first in range(200):
        sightings.observe(ALICE, [str(number) for number in range(first, first + 6)])
    assert 5.0 < sightings.mean(ALICE) <= 6.0 and sightings.mean(b"bob") == 1.0


def test_pictures_that_never_come_again_share_nothing() -> None:
    sightings = PictureSightings()
    for first in range(200):
        sightings.observe(ALICE, [f"{first} {number}" for number in range(6)] * 2)
    assert sightings.mean(ALICE) == 1.0


def test_old_pictures_and_tenants_are_forgotten() -> None:
    sightings = PictureSightings()
    for number in range(2 * MOST_PICTURES):
        sightings.observe(ALICE, [str(number)])
    assert len(sightings._tenants[ALICE].known) == MOST_PICTURES
    for number in range(2 * MOST_TENANTS):
        sightings.observe(str(number).encode(), ["a"])
    assert len(sightings._tenants) == MOST_TENANTS
