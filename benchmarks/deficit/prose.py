"""What the report says about each measurement, and what the papers state about the same."""

INTERVALS = (
    "Intervals: 95 %, bootstrap by episode (whole items). KL in nats from re-prefill at the answer; eta = 1 - KL "
    "/ KL of blind reuse, its median over items with a measurable deficit in brackets; flips: of the answers that "
    "blind reuse changed, the share restored."
)

ISOLATION = (
    "`blocked`: the chunk at its own positions, blind to its antecedents alone. `unblocked`: the mask's path with "
    "nothing hidden. `moved`: conditioned 1,000 positions further on and relocated. `filler`: conditioned on "
    "neutral filler in the antecedents' places. `raw`: blind and not relocated. The position-matched control is "
    "the KL of blind reuse from `blocked`: neither has the antecedents, one was made in place and one moved "
    "there; what they differ by is position and the text in front. Kamera: the control lies 10 to 320 times below "
    "the loss; filler leaves the full deficit."
)

RANK = (
    "Directions that hold 90 % of the deficit's energy (e90), then the KL by rank of the patch. Kamera: the KL "
    "knees at 8 to 16 and is flat by 32; e90 over tokens is at most 0.30 on V and lower on the keys of GQA; rank "
    "64 closes 85 to 96 % per item."
)

DEPTH = (
    "Relative norms by layer; `explained`: of the last layer's deficit, by conditioning injected into the "
    "residual stream that enters a layer. Kamera: 0.08 to 0.49 from shallow to deep; 27 % explained shallow, 97 % "
    "deep; re-prefill has to run 86 to 89 % of the layers again to match the patch; half the layers' factors keep "
    "95 %."
)

SPREAD = (
    "Shares that hold 90 % of the deficit's energy, then what true rows for some tokens or cells recover. "
    "`again`: computed in context among canonical rows. Kamera: an oracle needs about half of the tokens, a "
    "first-k carve recovers nothing, 51 % of the cells hold 90 %; a latent patch alone leaves about 8 times the "
    "floor."
)

LINK = (
    "Attention from the chunk's rows to its antecedents' keys in the conditioned forward. Kamera: about 25 "
    "landmark keys carry 90 %."
)

SHARED = (
    "Held-out items, as coefficients on directions pooled over other items of this task, or carried from another. "
    "Kamera: a pooled basis recovers as much as the item's own, and transfers."
)

CHEAP = (
    "Kamera: the sink, a linear operator for each antecedent, key similarity and a predictor from shallow layers "
    "all fail; the best selector, attention mass, has a recall of 0.70; the deficit goes against motion, not with "
    "similarity. Here the operator learns from other chunks behind the same antecedents, which costs up to six "
    "conditioned forwards, and the predictor from the teaching half; both are tried on held-out items. `true "
    "shallow only` is what the predictor starts from."
)

INSIGHTS = (
    "The chunk alone with the question, as in the paper. MPIC: under 5 % of the tokens get more than 1e-3; the "
    "first 43 % hold about 80 %; the keys that move most stand at the beginning."
)

ROUNDING = (
    "Rows rounded to bf16 against re-prefill's: root mean square, and the share within one unit; `relocation`: "
    "the largest error of relocation alone. Kamera: within one ULP."
)

ONE_WIDTH = (
    "All models here keep the same numbers a token and layer: whether the plateau follows the width cannot be "
    "said from them."
)

ONE_KIND = "No dense model stands beside one with experts here."
