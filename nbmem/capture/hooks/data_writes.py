"""Count writes through `p.data`, which torch counts nowhere.

`p.data.add_(...)` and `p.data -= step` are such writes. `p.data` is another tensor on the same
memory. Its version counter is separate, and it is freed immediately. So the attribute is patched
(see capture/patches/method_patches.py). The bytecode after the lookup shows whether the tensor is
written to immediately. Later writes, or writes in a function that receives it, are not detected.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import TYPE_CHECKING, Any

from nbmem.capture.patches.compilations import skip_in_dynamo
from nbmem.capture.tensors.tensors import requires_grad
from nbmem.core.runtime.bytecode import writes_at_once
from nbmem.core.runtime.entry_points import entry

if TYPE_CHECKING:
    from nbmem.capture.patches.compilations import OnFault

_DYNAMO = "torch._dynamo.variables.tensor"
_counts: dict[int, tuple[weakref.ref[Any], int]] = {}
"""How often each live tensor that needs a gradient was written to through its data, by its id."""
_lookups = 0
"""How often `.data` of any tensor that needs a gradient was looked up."""


def data_lookups() -> int:
    """Return how often `.data` of tensors that need a gradient was looked up."""
    return _lookups


def data_writes_of(tensor: object) -> int:
    """Return how often a tensor was seen written to through `.data`."""
    ref, count = _counts.get(id(tensor), (None, 0))
    return count if ref is not None and ref() is tensor else 0


def _count(tensor: Any) -> None:
    key = id(tensor)
    gone = weakref.ref(tensor, lambda ref: _counts.pop(key) if _counts[key][0] is ref else None)
    _counts[key] = gone, data_writes_of(tensor) + 1


class DataPatch:
    """A patch of `Tensor.data` that counts writes through it.

    Only a write directly after the lookup counts.

    Its `__set__` is that of the C++ class, so that no frame of nbmem's precedes its errors.
    """

    def __init__(self, owner: Any, original: Any, on_fault: OnFault) -> None:
        self._owner, self._original = owner, original
        self.on_fault = on_fault

    def apply(self) -> None:
        """Set the patch, unless the class has its own such attribute."""
        skip_in_dynamo(DataPatch.__get__)
        if "data" not in self._owner.__dict__:
            self._owner.data = self

    def revert(self) -> None:
        """Remove the patch."""
        if self._owner.__dict__.get("data") is self:
            del self._owner.data
        # Dynamo copies the class's attributes when it is imported, and reads their types there.
        copy = getattr(sys.modules.get(_DYNAMO), "all_tensor_attrs", {})
        if copy.get("data") is self:
            copy["data"] = self._original

    def __get__(self, obj: Any, kind: Any = None) -> Any:
        if obj is None:
            return self._original
        data = self._original.__get__(obj, kind)
        if requires_grad(obj):
            global _lookups  # noqa: PLW0603 - a counter of the process
            _lookups += 1
            self._notify(obj, sys._getframe(1))  # noqa: SLF001 - the frame that looks it up
        return data

    @entry("updates by hand")
    def _notify(self, obj: Any, frame: FrameType) -> None:
        if writes_at_once(frame.f_code, frame.f_lasti):
            _count(obj)


def create_data_patch(torch: Any, on_fault: OnFault) -> DataPatch:
    """Create the patch of `Tensor.data`."""
    original = torch._C.TensorBase.__dict__["data"]  # noqa: SLF001
    kind = type("DataPatch", (DataPatch,), {"__set__": original.__set__})
    lent: DataPatch = kind(torch.Tensor, original, on_fault)
    return lent
