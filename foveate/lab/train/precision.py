"""Mixed precision: which type a training computes in, and the scale of the loss that float16 needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foveate.errors import FoveateError

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
DEVICES = ("cuda",)  # kinds of devices that compute in these types
FIRST, LEAST, MOST = 2**16, 1, 2**24  # scales
PATIENCE = 2000  # steps without an overflow after which the scale is doubled


def half_type(precision: str, device: torch.device) -> torch.dtype | None:
    """The type that matrix products are computed in on a device; None for that of the model.

    Raises FoveateError for "fp16" on a CPU, where it is slower than float32 and less exact; "bf16" is then ignored.

    >>> half_type("bf16", torch.device("cuda")), half_type("bf16", torch.device("cpu"))
    (torch.bfloat16, None)
    """
    if precision not in TYPES:
        return None
    if device.type in DEVICES:
        return TYPES[precision]
    if precision == "fp16":
        raise FoveateError(
            f"train: expected a GPU for precision=fp16, got the device {device.type}; use precision=fp32"
        )
    return None


@dataclass
class LossScale:
    """The factor on the loss with which small gradients do not vanish in float16.

    A gradient that overflows halves it, and the step changes no weights; `PATIENCE` steps without an overflow double
    it. Both numbers are part of a checkpoint.

    Attributes:
        value: the factor, a power of two.
        good: steps since it was changed.

    >>> scale = LossScale()
    >>> scale.lower(); scale.value
    32768
    """

    value: int = FIRST
    good: int = 0

    def lower(self) -> None:
        """After a step whose gradient has overflowed."""
        self.value, self.good = max(LEAST, self.value // 2), 0

    def keep(self) -> None:
        """After a step whose gradient was finite."""
        self.good += 1
        if self.good >= PATIENCE:
            self.value, self.good = min(MOST, self.value * 2), 0

    @property
    def is_least(self) -> bool:
        """True if it cannot be lowered: the gradient is not finite for another reason."""
        return self.value <= LEAST
