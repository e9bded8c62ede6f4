"""The bench as a page, and as one picture."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

INK, GRID = "#2b2b2b", "#e3e3e3"
COLOURS = {"full": "#c9c3b8", "auto": "#0d3b4a", "blind": "#9db4c0", "mpic-32": "#1d6f8a"}


def write(found: dict[str, Any], folder: Path, command: str) -> list[Path]:
    """Write `vllm.md`, and `vllm.png` where there is something to draw; their paths."""
    paths = [folder / "vllm.md"]
    drawn = "first_tokens" in found or "talks" in found
    paths[0].write_text(page(found, command, drawn), encoding="utf-8")
    if drawn:
        paths.append(draw(found, folder / "vllm.png"))
    return paths


def page(found: dict[str, Any], command: str, drawn: bool) -> str:
    """The page's text."""
    made = found.get("environment", {})
    lines = ["# Inside vLLM, measured", ""]
    lines.append(
        f"`{command}` on {found['device']} ({made.get('cores')} cores, {made.get('date')}, torch {made.get('torch')}, "
        f"load average {found['load'][0]:.1f} before and {found['load'][1]:.1f} after). Servers are whole vLLM servers "
        f"over HTTP, in processes of their own. See [the plugin](../vllm.md); figures in [vllm.json](vllm.json)."
    )
    if "agreement" in found:
        lines += ["", "## Answers to two-page questions", "", *_agreement(found["agreement"])]
    if "clients" in found:
        many = found["clients"]
        lines += [
            "",
            f"{many['clients']} clients at once asked {many['asks']} questions under `auto`: {many['a second']:.1f} "
            f"answers a second, {many['different']} different from the answer alone.",
        ]
    if "first_tokens" in found:
        lines += ["", "## Seconds to the first token", "", *_first(found["first_tokens"])]
    if drawn:
        lines += ["", "![Seconds to the first token, and turns a second](vllm.png)"]
    if "talks" in found:
        size = found["talks"]["parameters"] / 1e6
        lines += ["", "## Conversations over ten pictures: time", ""]
        lines += [
            f"`vllm bench serve` sends the turns of {found['settings']['talks']} conversations, each over the same ten "
            f"pictures in an order of its own, to a random model of {size:.0f} M parameters; one token is asked for. "
            "`full` is vLLM with its own prefix cache, which the other rows have too. `as full` counts equal tokens of "
            "a model that was never trained, so it says little.",
            "",
            *_loaded(found["talks"]["held"]),
        ]
    if "answers" in found:
        lines += ["", "## Conversations over ten pictures: answers", ""]
        lines += [
            "The same, on the bundled `reference` and pages that it can read; each turn asks about the pair that was "
            "shown last. Under `auto` patches are captured as the turns go by; as each conversation has an order of "
            "its own, few antecedents come back, and what is not known is computed.",
            "",
            *_loaded(found["answers"]["held"]),
        ]
    return "\n".join(lines) + "\n"


def _agreement(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    yield "| strategy | as plain prefill | 95 % | right (plain) | picture rows linked | questions not linked |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for one in rows:
        share = one["linked_rows"] / max(1, one["picture_rows"])
        yield (
            f"| {one['strategy']} | {one['agreeing']} of {one['questions']} | {one['low']:.3f}-{one['high']:.3f} | "
            f"{one['right']} ({one['plain_right']}) | {share:.3f} | {one['fallbacks']} |"
        )


def _first(told: dict[str, Any]) -> Iterable[str]:
    arms = told["arms"]
    yield (
        f"A random model of {told['parameters'] / 1e6:.0f} M parameters, {arms[0]['prompt_tokens']} tokens with "
        f"{told['pictures']} pictures, one token asked for; every strategy once a round, medians of "
        f"{len(arms[0]['seconds'])}."
    )
    yield ""
    yield "| strategy | seconds | of plain prefill | tokens linked |"
    yield "| --- | ---: | ---: | ---: |"
    for arm in arms:
        share = arm["median"] / arms[0]["median"]
        yield f"| {arm['strategy']} | {arm['median']:.3f} | {share:.2f} | {arm['linked_tokens']} |"


def _loaded(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    yield (
        "| turns a second, sent | strategy | answered | first turn, s | later turns, s | 95 % of all, s | "
        "tokens linked | of prefix cache | KV moved, MB | as full | right |"
    )
    yield "| --- | --- |" + " ---: |" * 9
    for one in rows:
        right = "" if one["right"] is None else f"{one['right']} of {one['turns']}"
        yield (
            f"| {one['rate'] or 'at once'} | {one['strategy']} | {one['turns_a_second']:.2f} | "
            f"{one['first_turn']:.2f} | {one['later_turns']:.2f} | {one['slowest']:.2f} | "
            f"{one['linked_tokens'] / one['prompt_tokens']:.2f} | {one['prefix_tokens'] / one['prompt_tokens']:.2f} | "
            f"{one['kv_bytes'] / 1e6:.0f} | {one['agreeing']} of {one['turns']} | {right} |"
        )


def draw(found: dict[str, Any], path: Path) -> Path:
    """The times as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), dpi=110, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    first, wait, rate = figure.subplots(1, 3)
    for axes in (first, wait, rate):
        axes.grid(axis="y", color=GRID)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    if "first_tokens" in found:
        arms = found["first_tokens"]["arms"]
        for place, arm in enumerate(arms):
            first.bar(place, arm["median"], color=COLOURS.get(arm["strategy"], INK))
            first.plot([place] * len(arm["seconds"]), arm["seconds"], ".", color=INK, markersize=4)
        first.set_xticks(range(len(arms)), [arm["strategy"] for arm in arms])
        first.set_title("one prompt: s to the first token", fontsize=9)
    if "talks" in found:
        held = found["talks"]["held"]
        names = list(dict.fromkeys(one["strategy"] for one in held))
        rates = list(dict.fromkeys(one["rate"] for one in held))
        for axes, key, title in (
            (wait, "later_turns", "later turns: s to the first token"),
            (rate, "turns_a_second", "turns answered a second"),
        ):
            for place, name in enumerate(names):
                values = [one[key] for one in held if one["strategy"] == name]
                where = [number + (place - (len(names) - 1) / 2) * 0.25 for number in range(len(rates))]
                axes.bar(where, values, 0.23, color=COLOURS.get(name, INK), label=name)
            axes.set_xticks(range(len(rates)), [f"{one:g} a second" if one else "at once" for one in rates])
            axes.set_title(title, fontsize=9)
        rate.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Software": None})
    return path
