"""The order of a table: which rows of the prompt its queries and slots are."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class TableOrder:
    """Which rows of the prompt queries and slots of a table are: what a kernel reads in place of a mask.

    Attributes:
        query_rows, query_groups: [queries] int64.
        table_rows, table_groups: [slots] int64; a group of -1 is causal.
        hidden_from: [queries, slots] bool, True may not be attended; None hides nothing.
        window: of the layer.
        window_binds_groups: whether a window also cuts inside a bidirectional group.
    """

    query_rows: Tensor
    query_groups: Tensor
    table_rows: Tensor
    table_groups: Tensor
    hidden_from: Tensor | None
    window: int | None
    window_binds_groups: bool
