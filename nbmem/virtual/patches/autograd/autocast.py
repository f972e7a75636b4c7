"""Autocast for virtual tensors.

torch's C++ casts refuse tensors that are not on a CUDA device.

The lists are those of the CUDA op reference of torch.amp, as spelled out in
https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/autocast_mode.h
They are lists, separate from the records of operators. In torch they are one file, and they are
compared with it when a release changes it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import _C
from torch.utils._pytree import tree_map

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.operators.recurrent.layers import autocast_cells
from nbmem.virtual.patches.dispatcher import implement
from nbmem.virtual.patches.patcher import Patch
from nbmem.virtual.tensors.operator_call import operator_of

LOWER = (
    "_convolution", "_convolution.deprecated", "conv1d", "conv2d", "conv3d", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu",
    "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm",
    "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention", "cudnn_convolution",
    "cudnn_convolution_transpose",
)  # fmt: skip
FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus",
    "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim",
    "nuclear_norm", "nuclear_norm.dim",
    "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "linalg_matrix_sqrth",
)  # fmt: skip
FLOAT32_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum",
    "sum.dim_IntList", "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord",
)  # fmt: skip
# Which of its overloads takes a type.
FLOAT32_OVERLOAD = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put",
    "tensordot", "scatter_add",
)  # fmt: skip
RECURRENT = ("_cudnn_rnn",)
# https://github.com/pytorch/vision/tree/v0.26.0/torchvision/csrc/ops/autocast
FLOAT32_AND_BACK = {
    "torchvision": (
        "deform_conv2d", "nms", "ps_roi_align", "ps_roi_pool", "roi_align", "roi_pool",
    ),
}  # fmt: skip
_KEY = _C.DispatchKey.AutocastCUDA
_KEYS = _C.DispatchKeySet(_KEY)


class CastCache:
    """Weights cast to the lower type, for the outermost autocast region.

    The casts take memory until that region ends.
    """

    def __init__(self) -> None:
        self._casts: dict[int, tuple[Any, torch.Tensor]] = {}

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor in another type, cached where torch caches it.

        Since torch 2.11 inference_mode caches nothing: a cast made there cannot be trained with
        later (pytorch/pytorch#165068).
        """
        lower = torch.get_autocast_dtype("cuda")
        cached = (
            dtype is lower
            and tensor.dtype is torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
            and not (torch.is_inference_mode_enabled() and torch.__version__ >= "2.11")
        )
        if not cached:
            return tensor.to(dtype)
        held = self._casts.get(id(tensor))
        if held is not None and held[0]() is tensor:
            return held[1]
        cast = tensor.to(dtype)
        self._casts[id(tensor)] = (weakref.ref(tensor), cast)
        return cast

    def clear(self) -> None:
        """Drop all cached casts."""
        self._casts.clear()


class AutocastKernels:
    """The AutocastCUDA kernels, registered while a virtual card is active."""

    def __init__(self) -> None:
        self.cache = CastCache()
        self._library: Any = None
        self._others: dict[str, Any] = {}

    def register(self) -> None:
        """Register the kernels."""
        self._library = torch.library.Library("aten", "IMPL")
        for names, policy in (
            (LOWER, self._lower),
            (FLOAT32, self._float32),
            (FLOAT32_RESULT, self._float32_result),
            (FLOAT32_OVERLOAD, self._float32_overload),
            (WIDEST, self._widest),
            (RECURRENT, self._recurrent),
        ):
            for name in names:
                operator = operator_of(name)
                # Releases differ in a few; a CPU build has no recurrent kernels.
                if operator is not None and (names is RECURRENT or has_autocast_kernel(operator)):
                    implement(self._library, operator, _guarded(operator, policy), _KEY.name)

        self._register_others()

    def _register_others(self) -> None:
        """Register casts for the operators of other loaded libraries.

        C++ casts for them, too.
        """
        for space, names in FLOAT32_AND_BACK.items():
            if space in self._others:
                continue
            full = [f"{space}::{name}" for name in names]
            # A lookup in torch.ops of a library that is not loaded would leave its name there.
            loaded = [name for name in full if _C._jit_get_schemas_for_operator(name)]
            operators = [operator_of(name) for name in loaded]
            found = [operator for operator in operators if operator is not None]
            if found:
                library = self._others[space] = torch.library.Library(space, "IMPL")
                for operator in filter(has_autocast_kernel, found):
                    implement(library, operator, _guarded(operator, self._and_back), _KEY.name)

    def unregister(self) -> None:
        """Unregister the kernels, which restores torch's own."""
        self.cache.clear()
        while self._others:
            self._others.popitem()[1]._destroy()
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def patches(self) -> list[Patch]:
        """Return patches of clear_autocast_cache() and load_library().

        The first ends an autocast region. The second loads operators that may need casts.
        """
        original_clear, original_load = torch.clear_autocast_cache, torch.ops.load_library

        def clear() -> None:
            self.cache.clear()
            original_clear()

        def load_library(path: Any) -> None:
            original_load(path)
            self._register_others()

        return [
            Patch(torch, "clear_autocast_cache", clear),
            Patch(torch.ops, "load_library", load_library),
        ]

    def wrap_for_subclasses(self, operator: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Return a kernel that casts by itself, for subclass wrappers.

        On a card a DTensor has CUDA's autocast key, like the tensor that it wraps. Here C++ gives
        it the keys of its device, of which none is autocast's. A kernel of an operator that is not
        cast is returned unchanged.
        """
        name = str(operator.name()).removeprefix("aten::")
        if name not in LOWER or not has_autocast_kernel(operator):
            return kernel

        def lowered(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_autocast_enabled("cuda"):
                return kernel(*args, **kwargs)
            with _C._ExcludeDispatchKeyGuard(_KEYS):
                return self._lower(kernel, args, kwargs)

        return lowered

    def _lower(self, operator: Any, args: Any, kwargs: Any) -> Any:
        return self._in_type(operator, args, kwargs, torch.get_autocast_dtype("cuda"))

    def _float32(self, operator: Any, args: Any, kwargs: Any) -> Any:
        return self._in_type(operator, args, kwargs, torch.float32)

    def _in_type(self, operator: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
        # The C++ kernels cast inside an argument list, which compilers evaluate from the right.
        kwargs = {name: self._cast(arg, dtype) for name, arg in reversed(kwargs.items())}
        args = [self._cast(arg, dtype) for arg in reversed(args)]
        return operator(*reversed(args), **kwargs)

    def _and_back(self, operator: Any, args: Any, kwargs: Any) -> Any:
        lower = args[0].dtype
        results = self._float32(operator, args, kwargs)
        return tree_map(lambda t: t.to(lower) if t.is_floating_point() else t, results)

    def _float32_result(self, operator: Any, args: Any, kwargs: Any) -> Any:
        softmax = "softmax" in operator._schema.name and len(args) > 2
        given = args[2] if softmax else kwargs.get("dtype")  # cross_entropy() names its input's
        if _castable(args[0], torch.float32) and given is None:
            args = args[:2] if softmax else args
            kwargs = {**kwargs, "dtype": torch.float32}
        return operator(*args, **kwargs)

    def _float32_overload(self, operator: Any, args: Any, kwargs: Any) -> Any:
        if _castable(args[0], torch.float32):
            schema = operator._schema
            name = f"{schema.name.removeprefix('aten::')}.{schema.overload_name}"
            operator = operator_of(FLOAT32_OVERLOAD[name])
            args = (*args, *(a.default_value for a in schema.arguments[len(args) :]))
            kwargs = {**kwargs, "dtype": torch.float32}
        return operator(*args, **kwargs)

    def _recurrent(self, operator: Any, args: Any, kwargs: Any) -> Any:
        return autocast_cells(operator, args, kwargs, torch.get_autocast_dtype("cuda"))

    def _widest(self, operator: Any, args: Any, kwargs: Any) -> Any:
        floats = [t for t in _flat((*args, *kwargs.values())) if t.is_floating_point()]
        types = {t.dtype for t in floats}
        if torch.float32 in types and len(types) > 1:
            return self._in_type(operator, args, kwargs, torch.float32)
        return operator(*args, **kwargs)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(item, dtype) for item in value)
        return self.cache.cast(value, dtype) if _castable(value, dtype) else value


def has_autocast_kernel(operator: Any) -> bool:
    """Return whether this torch casts an operator under CUDA autocast."""
    return bool(_C._dispatch_has_kernel_for_dispatch_key(operator.name(), _KEY.name))


def _castable(value: Any, dtype: torch.dtype) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and is_virtual(value)
        and value.is_floating_point()
        and value.dtype is not torch.float64
        and value.dtype is not dtype
    )


def _flat(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)


def _guarded(operator: Any, policy: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _C._ExcludeDispatchKeyGuard(_KEYS):
            return policy(operator, args, kwargs)

    return kernel
