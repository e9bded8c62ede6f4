"""Plain sentences for haystacks and passages, in words that the bundled models' tokenizer knows."""

from __future__ import annotations

SENTENCES: tuple[str, ...] = (
    "in the morning the road must lead along the river .",
    "the people of the village wait for the rain .",
    "a good book is a friend on a long journey .",
    "my brother told me a story about the sea .",
    "it was cold and the road was empty .",
    "they walk through the old town until evening .",
    "the old man said nothing and went home .",
    "we had bread and water for dinner .",
    "she may see the ocean again next summer .",
    "the train will leave the station at night .",
    "someone knew why the door was open .",
    "there is a small shop at the corner of the street .",
    "the wind was strong and the sky was dark .",
    "he found a letter in the kitchen and read it .",
    "some children play in the garden after school .",
    "the weather will change before the week is over .",
    "two friends talk about music and science .",
    "every story has a first page and a last page .",
    "the farm lies between the hill and the coast .",
    "in winter the day is short and the night is long .",
    "a man from the north came to the market .",
    "the guide told us to keep to the path .",
    "it is hard to find your way without light .",
    "the report was long but never clear .",
)
