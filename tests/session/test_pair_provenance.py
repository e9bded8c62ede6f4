"""What a request does not show cannot be read out of the memory of pairs: a chat whose legend was dropped."""

import numpy as np
import pytest

from benchmarks.tasks.episodes import TEMPLATES, Plan, facts, make_episode
from benchmarks.tasks.world import Episode
from emblema import Engine, Policy
from emblema.link.policy.fidelity import Sample, divergence
from emblema.session.pair_memories import PairMemories
from emblema.session.pair_memory import PairSettings

WINDOW = 6
LEARNS = Policy(canary=0, sightings=15, learning_share=None)


@pytest.mark.slow
def test_a_dropped_legend_is_not_read_from_memory(reference: Engine) -> None:
    """A window slides over pages, the legends first; each window is learnt from in full, the legends' with the rest.

    Then the same pages come without the legend, and the questions are about what it alone told.
    """
    own = Engine(reference.adapter.model, reference.processor, policy=LEARNS)
    settings = PairSettings(noted_rows=100_000)
    PairMemories.of_store(own.store.parent).of(own.store, own.adapter, own.adapter.fingerprint, settings)
    generator = np.random.default_rng(31)
    maps = 9
    episode = make_episode(generator, Plan("LLL" + "M" * maps, 8, (1,) * maps, 9, ()), 31, "sliding", 0)
    chunks = [own.add(page.image()) for page in episode.pages]
    samples: dict[str, list[Sample]] = {"blind": [], "pair+query-3%": []}
    told = dict.fromkeys(("full", "blind", "pair", "pair+query-3%"), 0)
    for turn in range(4):
        order = [
            *(int(page) for page in generator.permutation(3)),
            *(3 + int(page) for page in generator.permutation(maps)),
        ]
        for last in range(2, len(order)):
            window = order[max(0, last - WINDOW + 1) : last + 1]
            here, before = (
                facts(Episode(31, tuple(episode.pages[page] for page in pages), ()))
                for pages in (window, order[: last + 1])
            )
            dropped = sorted(name for name in before["land"] if name not in here["land"] and name in here["colour"])
            for name in dropped[:2] if turn else ():
                parts = [*(chunks[page] for page in window), TEMPLATES["land"][0].format(name)]
                own.policy_runtime.policy = Policy.quiet()
                full = own.prefill(parts, "full").logits
                answer = own.tokenizer.decode([int(full.argmax())]).strip()
                told["full"] += answer == before["land"][name][0]
                for strategy in ("blind", "pair", "pair+query-3%"):
                    logits = own.prefill(parts, strategy).logits
                    if strategy in told:
                        said = own.tokenizer.decode([int(logits.argmax())]).strip()
                        told[strategy] += said == before["land"][name][0]
                    if strategy in samples:
                        agrees = bool(logits.argmax() == full.argmax())
                        samples[strategy].append(Sample(divergence(full, logits), agrees))
            own.policy_runtime.policy = LEARNS
            own.prefill([*(chunks[page] for page in window), "what is in this picture ?"], "full")
    found = samples["pair+query-3%"]
    assert len(found) > 20 and own.policy_runtime.pairs().statistics.entries > 1000
    assert sum(sample.agrees for sample in found) >= 0.97 * len(found)
    assert sum(sample.kl for sample in found) < 0.2 * sum(sample.kl for sample in samples["blind"])
    few = 0.05 * len(found)
    assert told["pair+query-3%"] <= told["full"] + few
    assert told["pair"] <= told["blind"] + few, "no more than is guessed by rows that remember nothing"
    own.close()
