"""Every error that Emblema raises on purpose. Each message names the input and says what to do."""


class EmblemaError(Exception):
    """Base of all errors raised by Emblema."""


class MediaError(EmblemaError):
    """A picture, video, document or address could not be read, or is outside the limits."""


class ModelError(EmblemaError):
    """A model could not be loaded or does not behave as its family should."""


class UnsupportedModelError(ModelError):
    """The model holds a layer whose rows cannot be relocated exactly; the message names the layer."""


class PromptError(EmblemaError):
    """A prompt is empty, malformed, or cannot be rendered."""


class ContextLengthError(PromptError):
    """A prompt, with the reply that is asked for, is longer than the model's context, or has more text than may be."""


class WindowError(EmblemaError):
    """A window cannot do what was asked: a part is unknown or gone for good, an order is none, the window is closed."""


class StreamError(EmblemaError):
    """A stream cannot do what was asked: nothing was seen yet, time went back, a setting is wrong, it is closed."""


class StrategyError(EmblemaError):
    """A strategy's name is unknown or its knob is out of range."""


class PlanError(EmblemaError):
    """A link plan breaks an invariant, for example a row with two sources in one layer."""


class CapacityError(EmblemaError):
    """A prompt, or one piece, needs more bytes than a budget or quota allows, or no room came free in time."""


class BusyError(EmblemaError):
    """More is waiting than may wait. Nothing was begun.

    Attributes:
        retry_after: seconds after which it is worth asking again, as measured.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineError(EmblemaError):
    """A request was not answered by its deadline."""


class StoreError(EmblemaError):
    """A store, library or server cannot do what was asked: a piece is missing or damaged, a name or option is wrong."""


class LoadError(StoreError):
    """A stored piece is gone, damaged, or too slow to come. The caller that needs it computes it again.

    Attributes:
        piece: id of the chunk or patch.
        reason: what was wrong.
        late: whether it only did not come in time, so that nothing is known against it.
    """

    def __init__(self, piece: str, reason: str, late: bool = False) -> None:
        super().__init__(f"{piece[:12]} could not be loaded: {reason}")
        self.piece = piece
        self.reason = reason
        self.late = late
