"""torch.compile while a virtual card is active.

Inductor plans compiled regions for the card. A compiled function reads Dynamo's stance at
every call, so the patched stance also applies to what was compiled before. A region captured for
the backend `eager` runs as it was captured.

A region that cannot be planned runs eagerly, and a note names the region and the reason. This holds
for other backends than these two, and for any failure while planning: an error of the simulation is
no error of the program.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch._dynamo.exc import RestartAnalysis

from nbmem.core.runtime.garbage_collector import only_new_objects, rare_collections
from nbmem.virtual import warnings
from nbmem.virtual.devices import is_virtual
from nbmem.virtual.dispatch.card_mode import CardMode
from nbmem.virtual.dispatch.tracing import without_jit_trace
from nbmem.virtual.frames import is_own
from nbmem.virtual.hardware.eager_baseline import EagerEstimate
from nbmem.virtual.patches.compiled.aot_inductor import AheadOfTime
from nbmem.virtual.patches.compiled.capture import Capture
from nbmem.virtual.patches.compiled.graph_trees import GraphTrees, missing_attributes
from nbmem.virtual.patches.compiled.inductor_planner import InductorPlanner
from nbmem.virtual.patches.compiled.stack_size import with_large_stack
from nbmem.virtual.patches.eager_baseline.follower import Follower
from nbmem.virtual.patches.patcher import Patch, Patches, patches_of

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine

T = TypeVar("T")
PLANNED = hasattr(torch._C, "_conv_determine_backend_memory_format") and (
    tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 11)
)
"""Whether this release's compiler is one that is known here; the others' regions run eagerly."""
_CAPTURED = "eager"
"""The backend that runs what was captured as it is: Inductor's is planned."""
_Wrapper: Any = getattr(torch, "_TorchCompileInductorWrapper", None)


class Compiler:
    """Plans compiled functions for the cards; idle until one is called.

    Args:
        mode: The mode of the cards.
        machine: The cards.
        patches: Replacements of torch's functions; those for Inductor are added to it later.
        eager: Plan nothing: a program that is run many times over would wait for each plan.
        keep: Folder of plans that other activations reuse; None to save none.
    """

    def __init__(
        self,
        mode: CardMode,
        machine: Machine,
        patches: Patches,
        *,
        eager: bool,
        keep: str | None,
    ) -> None:
        self._eager = eager
        self._note: Callable[[str], None] = machine.gpus[0].note
        self._patches = patches
        self._planner = InductorPlanner(mode, machine, keep=keep)
        self._follower = None if keep is not None else Follower(mode, patches)
        self._machine = machine
        self._graphs = GraphTrees(mode, machine)
        self._ahead = AheadOfTime(mode, machine)
        self._capture = Capture(mode, machine, patches)
        self._begun = False
        self._region = ""
        self._passes = False
        self._collects = False

    def patches(self) -> list[Patch]:
        """Return the patches that apply from the beginning."""
        from torch._dynamo import convert_frame, eval_frame, trace_rules

        # Computed before the patches, as it is by functions: two may have one stand-in.
        rules = trace_rules.get_torch_obj_rule_map()
        original_stance: Any = eval_frame._callback_from_stance

        def callback_from_stance(callback: Any) -> Any:
            chosen = original_stance(callback)
            if chosen is None or chosen is False:  # the program's own choice
                return chosen
            if self._eager:
                return self._eagerly(warnings.COMPILE_LATER)
            if PLANNED and _is_known(eval_frame.innermost_backend(chosen)):
                self._begin()
                return chosen
            return self._eagerly(warnings.COMPILE)

        return [
            Patch(trace_rules, "get_torch_obj_rule_map", functools.cache(lambda: rules)),
            Patch(eval_frame, "_callback_from_stance", callback_from_stance),
            Patch(torch.compiler, "cudagraph_mark_step_begin", self._graphs.mark_step_begin),
            *self._counting(eval_frame),
            *self._ahead.patches(),
            *patches_of(torch._C, self._graphs.functions()),
            *missing_attributes(),
            # torch.compile() imports Inductor for this alone: for seconds, and to start workers.
            *patches_of(_Wrapper, {"get_compiler_config": lambda self: {}}, only_existing=True),
            *(self._planned(convert_frame) if PLANNED else []),
        ]

    def _eagerly(self, note: str) -> None:
        """Add a note and return None, so that Dynamo runs the function as is.

        With fullgraph=True the function counts as compiled all the same.
        """
        self._note(note)
        self._passes = True

    def _counting(self, eval_frame: Any) -> list[Patch]:
        """Return a patch that counts functions run eagerly as compiled.

        Since torch 2.13 a full graph of which no frame was compiled is an error. Empty for older
        releases.
        """
        original_count: Any = getattr(eval_frame, "set_fullgraph_compiled_frame_count", None)

        def count(value: int) -> int:
            before: int = original_count(value)
            passes, self._passes = self._passes, False
            return 1 if before == 0 and passes else before

        return (
            []
            if original_count is None
            else [Patch(eval_frame, "set_fullgraph_compiled_frame_count", count)]
        )

    def leave(self) -> None:
        """Forget captured CUDA graphs, while the card still exists."""
        if self._begun:
            self._graphs.end()

    def end(self) -> None:
        """Forget all plans, which do not hold for another card."""
        self._planner.end()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            with rare_collections():
                self._patches.apply(self._planner.begin())
                self._patches.apply(self._graphs.patches())
                if self._follower is not None:
                    self._patches.apply(self._follower.patches())
                    for gpu in self._machine.gpus:
                        gpu.eager_estimate = EagerEstimate(gpu)

    def _planned(self, convert_frame: Any) -> list[Patch]:
        from torch._C._dynamo.eval_frame import set_code_exec_strategy  # new in torch 2.7
        from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy

        eagerly = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)  # with all that it calls
        # A frame of nbmem runs as it is, but frames of the program that it calls are compiled.
        as_it_is = FrameExecStrategy(FrameAction.SKIP, FrameAction.DEFAULT)
        catcher: Any = convert_frame.CatchErrorsWrapper
        original_catch: Any = catcher.__call__
        original_plan: Any = _Wrapper.__call__
        compiler = self
        # Where a graph breaks, Dynamo handles each frame that runs, nbmem's included.
        for function in (CardMode.__torch_dispatch__, without_jit_trace(_is_on_card)):
            set_code_exec_strategy(function.__code__, eagerly)

        def catch(self: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
            with compiler._capture.without_mode() as captures:
                if is_own(frame):
                    return ConvertFrameReturn(frame_exec_strategy=as_it_is)
                if not captures:
                    return original_catch(self, frame, cache_entry, frame_state)
                compiler._region = frame.f_code.co_qualname
                try:
                    return compiler._with_few_collections(
                        lambda: original_catch(self, frame, cache_entry, frame_state)
                    )
                except torch.OutOfMemoryError:
                    raise
                except Exception as err:
                    if isinstance(self._torchdynamo_orig_backend, convert_frame.ConvertFrameAssert):
                        raise  # fullgraph=True: a program that cannot be captured gets the error
                    compiler._give_up(err)
                    return ConvertFrameReturn(frame_exec_strategy=eagerly)

        def plan(self: Any, model: Any, inputs: Any, **config: Any) -> Any:
            if not _is_on_card(model, inputs):
                return model.forward
            compiler._collects = True
            gc.collect()  # before what is timed takes memory beside it
            try:
                with (
                    only_new_objects(),
                    compiler._planner.planning(),
                    compiler._following(model, inputs),
                ):
                    return original_plan(self, model, inputs, **config)
            except (torch.OutOfMemoryError, RestartAnalysis):
                raise  # RestartAnalysis: Dynamo captures it again, differently
            except Exception as err:  # noqa: BLE001 - the region is captured, and runs as it is
                compiler._give_up(err)
                return model.forward

        return [
            Patch(catcher, "__call__", catch),
            Patch(_Wrapper, "__call__", plan),
            *self._capture.patches(),
        ]

    def _with_few_collections(self, work: Callable[[], T]) -> T:
        """Capture and plan with two garbage collections, not hundreds.

        Compiling a ResNet-50 has fifteen, a seventh of its time. Programs depend on them: what the
        previous call left in cycles is freed when a region is compiled once more.
        """
        self._collects = False
        apart = contextlib.nullcontext() if self._follower is None else self._follower.excluding()
        with apart:
            try:
                with rare_collections():
                    found = with_large_stack(work)
                if self._collects:
                    gc.collect()
            finally:
                self._planner.settle()
        return found

    def _following(self, model: Any, inputs: Any) -> contextlib.AbstractContextManager[None]:
        if self._follower is None:
            return contextlib.nullcontext()
        return self._follower.planning(model, inputs)

    def _give_up(self, err: Exception) -> None:
        why = (str(err).strip().splitlines() or [""])[0]
        self._note(warnings.unplanned(self._region, why))


def _is_known(backend: Any) -> bool:
    """Return whether a backend is Inductor or runs captured graphs as is."""
    return isinstance(backend, _Wrapper) or getattr(backend, "compiler_name", "") == _CAPTURED


def _is_on_card(model: Any, inputs: Any) -> bool:
    """Return whether a captured region takes or makes virtual tensors."""
    if any(is_virtual(one) for one in inputs):
        return True
    made = (node.meta.get("example_value") for node in model.graph.nodes)
    return any(is_virtual(one) for one in made)
