"""Remedies for pipelines of diffusers: the decoder, and idle models."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nbmem.estimates.remedies.base import Remedy, SavingsModel
from nbmem.estimates.remedies.patches import moves_to_card
from nbmem.estimates.stand_ins import is_installed
from nbmem.virtual.patches.patcher import Patch, Patches

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card


LIBRARY = "diffusers.pipelines.pipeline_utils"


class _PipelineChange(Remedy):
    """A call of a pipeline's own, made where it is moved to the card."""

    not_applicable = "No pipeline of diffusers is moved to the card in it."

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str, None] = {}
        self._patches = Patches()

    @classmethod
    def missing(cls) -> str | None:
        """Return a reason where the program has imported no pipeline."""
        if LIBRARY not in sys.modules:
            return cls.not_applicable
        if not is_installed("accelerate"):
            return "accelerate, which moves models, is not installed here."
        return None

    @classmethod
    def idle(cls, models: Iterable[Any], optimizers: Iterable[Any]) -> bool:
        """Return whether the program trains, and draws nothing."""
        return any(True for _ in optimizers)

    def prepare(self) -> None:
        """Patch the pipelines' move; the run without remedies has imported them."""
        library = sys.modules.get(LIBRARY)
        if library is None:
            return
        true = library.DiffusionPipeline.to

        def to(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
            if moves_to_card("to", args, kwargs):
                return self.move(pipeline, lambda: true(pipeline, *args, **kwargs))
            return true(pipeline, *args, **kwargs)

        self._patches.apply([Patch(library.DiffusionPipeline, "to", to)])

    def finish(self) -> None:
        """Undo the patch."""
        self._patches.undo()

    def move(self, pipeline: Any, true: Any) -> Any:
        """Move a pipeline, with the change; `true` moves it without."""
        raise NotImplementedError

    def note(self, pipeline: Any, call: str) -> None:
        """Note a call of a pipeline, by the program's name for it."""
        names = (name for name, value in vars(sys.modules["__main__"]).items() if value is pipeline)
        self._lines[f"{next(names, 'pipe')}.{call}"] = None
        self.applied += 1

    def code_of(self, card: Card) -> str:
        """Return the calls."""
        return "\n".join(self._lines)


class TiledDecoder(_PipelineChange):
    """A VAE that decodes one image, and one tile of it, at a time."""

    key = "tiled_decoder"
    title = "VAE in tiles and slices"
    price = "a little more time; tiles of large images may differ slightly in tone"
    acts = SavingsModel(passing=0.7, waiting=0.7)

    def move(self, pipeline: Any, true: Any) -> Any:
        """Switch tiles and slices on."""
        vae = getattr(pipeline, "vae", None)
        for call in ("enable_tiling", "enable_slicing"):
            if hasattr(vae, call):
                getattr(vae, call)()
                self.note(pipeline, f"vae.{call}()")
        return true()


class OffloadedModels(_PipelineChange):
    """A pipeline's models on the host, but for the one that runs."""

    key = "offloaded_models"
    title = "models on the host in turn"
    price = "each model is moved once for each image: some seconds"
    acts = SavingsModel(weights=0.6)

    def move(self, pipeline: Any, true: Any) -> Any:
        """Leave the models on the host until they are called."""
        del true
        pipeline.enable_model_cpu_offload()
        self.note(pipeline, "enable_model_cpu_offload()   # in place of .to(...)")
        return pipeline
