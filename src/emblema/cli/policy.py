"""`emblema policy`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emblema.cli.options import STORE, Json, Plain, StoreFolder
from emblema.errors import StoreError

if TYPE_CHECKING:
    from emblema.link.policy.fidelity import FidelityLog


def policy(
    store: StoreFolder = STORE,
    owner: Annotated[str | None, typer.Option(help="One tenant's only: a digest's beginning, or shared.")] = None,
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """Say what the canary measured: which ways of taking a chunk `auto` trusts, by model and kind of content."""
    from emblema.cli.screen import console, show_json, table
    from emblema.session.fidelity_logs import read_all

    if not Path(store).is_dir():
        raise StoreError(f"--store {store}: there is no such folder")
    found = {name: log for name, log in read_all(Path(store)).items() if name.startswith(owner or "")}
    if as_json:
        show_json([line for name, log in found.items() for line in _lines(name, log)])
        return
    screen = console(plain)
    if not any(log.reports() or log.plateaus() for log in found.values()):
        screen.print(
            "Nothing was measured yet: linked prompts are compared with full prefills after they are answered."
        )
        return
    numbers = ("KL, nats", "agreement", "of", "ever", "turned")
    shown = table(
        "owner", "model", "kind", "lane", "taken", *numbers, right=numbers, title=f"What auto trusts: {store}"
    )
    for name, log in found.items():
        for line in log.reports():
            words = (name[:8], line.model[:8], line.kind, line.lane, "yes" if line.open else "no")
            counts = (str(line.samples), str(line.measured), str(line.turns))
            shown.add_row(*words, f"{line.kl:.2g}", f"{line.agreement:.1%}", *counts)
    screen.print(shown)
    screen.print(
        "KL, agreement: the answer's first token against re-prefill's, over the latest measurements. taken: whether "
        "auto takes the lane. turned: how often it was closed or opened. "
        "A window's settled rows are taken always, its survivors while they are trusted."
    )
    for name, log in found.items():
        for model, rank in sorted(log.plateaus().items()):
            screen.print(
                f"{name[:8]}, model {model[:8]}: patches gain nothing from rank {rank} on, and are formed with it"
            )


def _lines(owner: str, log: "FidelityLog") -> list[dict[str, Any]]:
    ranks = log.plateaus()
    return [{"owner": owner, **asdict(line), "plateau": ranks.get(line.model)} for line in log.reports()]
