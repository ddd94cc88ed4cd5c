"""When the function mode of `fv.watch` listens: it costs time on every torch call, attention or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from foveate.watch.modules import FUSED, attends, is_changed


@dataclass
class Listening:
    """Takes a function mode off torch's stack while modules run that only hold attention modules.

    A module's first run is always listened to. A module that holds attention modules and made no attention call of its
    own in that run is not listened to again, except inside the modules it holds. The mode keeps its place among other
    modes: it is left alone when another one lies above it, or when `foveate.hf` changed a module while it is watched.

    Attributes:
        mode: that is on the stack.
        callers: names of the modules that made a call of their own.
    """

    mode: TorchFunctionMode
    callers: set[str] = field(default_factory=set)
    _known: set[str] = field(default_factory=set)
    _paused: bool = False

    def run(self, name: str, held: Sequence[nn.Module], forward: Callable[[], Any]) -> Any:
        """Run the forward of a module, which holds the attention modules `held`, with the mode on or off the stack."""
        if self._turns(name, held):
            self._switch()
            try:
                result = forward()
            finally:
                self._switch()
        else:
            result = forward()
        self._known.add(name)
        return result

    def _turns(self, name: str, held: Sequence[nn.Module]) -> bool:
        wanted = not held or name in self.callers or name not in self._known or any(map(is_changed, held))
        return wanted if self._paused else not wanted and _get_current_function_mode() is self.mode

    def _switch(self) -> None:
        if self._paused:
            self.mode.__enter__()
        else:
            self.mode.__exit__(None, None, None)
        self._paused = not self._paused


def held_attention(module: nn.Module) -> list[nn.Module]:
    """The attention modules that a module holds; none when it attends itself."""
    if _listens(module):
        return []
    return [part for part in module.modules() if _listens(part)]


def _listens(module: nn.Module) -> bool:
    return attends(module) or isinstance(module, FUSED)
