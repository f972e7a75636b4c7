"""Measure a model layer by layer: parameters, training state and FLOPs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError
from nbmem.estimates.questions.layer_hooks import LayerWatch, on_card, shape_of, tensors, train
from nbmem.estimates.runs.run_card import RunOptions, in_use, run_forked
from nbmem.report.estimate_results import LayerRow, Layers

if TYPE_CHECKING:
    from nbmem.estimates.programs.programs import Program
    from nbmem.virtual.cards import Card

MODEL, INPUT, OPTIMIZER = "_nbmem_model", "_nbmem_input", "_nbmem_optimizer"


def measure(program: Program, card: Card, title: str, shape: tuple[int, ...] | None) -> Layers:
    """Run one training step of a model and measure each of its layers.

    The step runs on a virtual card.

    Args:
        program: Brings the model under MODEL, and maybe an INPUT and an OPTIMIZER.
        card: On which card.
        title: What the model is called.
        shape: Of a made-up input; None to use INPUT, or no input at all.

    Raises:
        UsageError: The model does not run on the input.
    """

    def work() -> Layers:
        with in_use(RunOptions((card,))):
            names = vars(program.prepare())
            return _measure(
                names[MODEL], title, shape, given=names.get(INPUT), optimizer=names.get(OPTIMIZER)
            )

    return run_forked(work)


def measure_script(
    program: Program, card: Card, name: str, shape: tuple[int, ...] | None
) -> Layers:
    """Run a script and measure the model that it makes.

    The model's optimizer is found by its parameters.

    Raises:
        UsageError: The script fails, or makes no such model.
    """

    def work() -> Layers:
        with in_use(RunOptions((card,))):
            module = program.prepare()
            try:
                program.run(module, None)
            except Exception as err:  # noqa: BLE001 - whatever the user's script raises
                raise UsageError(f"The script fails: {type(err).__name__}: {err}") from None
            model = getattr(module, name, None)
            if not hasattr(model, "named_modules"):
                raise UsageError(f"The script makes no model of the name {name}.")
            kind = type(model).__name__
            return _measure(
                model, f"{name}: {kind}", shape, optimizer=optimizer_of(vars(module), model)
            )

    return run_forked(work)


def optimizer_of(names: Mapping[str, Any], model: Any) -> Any:
    """Return the optimizer in a namespace that steps a model, or None."""
    own = {id(p) for p in model.parameters()}
    for value in names.values():
        groups = getattr(value, "param_groups", None)
        if isinstance(groups, list) and any(
            id(p) in own for group in groups for p in group.get("params", ())
        ):
            return value
    return None


def _measure(
    model: Any,
    title: str,
    shape: tuple[int, ...] | None,
    *,
    given: Any = None,
    optimizer: Any = None,
) -> Layers:
    import torch

    model = model.cuda().train()
    if given is None and shape is not None:
        given = _made_up(model, shape)
    kind = (
        "if trained with AdamW" if optimizer is None else f"of its own {type(optimizer).__name__}"
    )
    if optimizer is None:
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained) if trained else None
    watch = LayerWatch(model)
    if given is not None:
        train(watch, model, on_card(given))
        watch.notes.append("What several layers save is counted at the first of them.")
    else:
        watch.notes.append(
            "Activations, outputs and FLOPs need an input: add --input 32,3,224,224 or the name of "
            "a batch."
        )
    state = _state(model, optimizer)
    return Layers(
        title=title,
        rows=tuple(_rows(model, state, watch if given is not None else None)),
        optimizer=kind,
        shape=None if given is None else shape_of(given),
        sentences=tuple(watch.notes),
    )


def formula(layer: Any) -> str:
    """Format the count of a layer's own parameters as a formula."""
    sizes = {
        name: " x ".join(map(str, parameter.shape)) or "1"
        for name, parameter in layer.named_parameters(recurse=False)
    }
    kind = type(layer).__name__
    if "weight" in sizes and "Norm" in kind and sizes.get("bias") == sizes["weight"]:
        return f"2 x {sizes['weight']}"
    if kind == "Linear" and "weight" in sizes:  # M x N: what comes in, what goes out
        wide, tall = layer.in_features, layer.out_features
        return f"{wide} x {tall}" + (f" + {tall}" if "bias" in sizes else "")
    if kind in ("Conv1d", "Conv2d", "Conv3d"):
        window = " x ".join(map(str, layer.kernel_size))
        groups = "" if layer.groups == 1 else f" / {layer.groups}"
        bias = f" + {layer.out_channels}" if "bias" in sizes else ""
        return f"{layer.in_channels}{groups} x {layer.out_channels} x {window}{bias}"
    return " + ".join(sizes.values())


def _rows(model: Any, state: dict[int, int], watch: LayerWatch | None) -> Iterator[LayerRow]:
    seen: set[int] = set()
    for name, layer in model.named_modules():
        own = [p for p in layer.parameters(recurse=False) if id(p) not in seen]
        seen |= {id(p) for p in own}
        trained = [p for p in own if p.requires_grad]
        buffers = sum(b.nbytes for b in layer.buffers(recurse=False))
        row = LayerRow(
            name=name or "(itself)",
            kind=type(layer).__name__,
            formula=formula(layer) if own else "",
            parameters=sum(p.numel() for p in own),
            weights=sum(p.nbytes for p in own),
            buffers=buffers,
            gradients=sum(p.nbytes for p in trained),
            optimizer=sum(state.get(id(p), 0) for p in own),
            saved=None if watch is None else watch.saved.get(name, 0),
            output=None if watch is None else watch.output.get(name, 0),
            forward_flops=None if watch is None else _own(name, layer, watch.forward_flops),
            backward_flops=None if watch is None else _own(name, layer, watch.backward_flops),
        )
        leaf = next(layer.children(), None) is None
        if leaf or own or buffers or row.saved or row.forward_flops:
            yield row


def _own(name: str, layer: Any, flops: dict[str, int]) -> int:
    """Return a module's FLOPs without those of the modules inside it."""
    return max(flops.get(name, 0) - _inside(name, layer, flops), 0)


def _inside(name: str, layer: Any, flops: dict[str, int]) -> int:
    """Sum the FLOPs of a module's children.

    A ModuleList is never called, so the counter has no entry for it. Its children are summed
    instead.
    """
    total = 0
    for child, module in layer.named_children():
        full = f"{name}.{child}" if name else child
        total += flops[full] if full in flops else _inside(full, module, flops)
    return total


def _state(model: Any, optimizer: Any) -> dict[int, int]:
    """Map each parameter's id to its bytes of optimizer state after a step.

    Only state on the card counts.
    """
    import torch

    if optimizer is None:
        return {}
    for p in model.parameters():
        if p.requires_grad and p.grad is None:
            p.grad = torch.zeros_like(p)
    optimizer.step()
    return {
        id(p): sum(t.nbytes for t in tensors(dict(kept)) if t.is_cuda)
        for p, kept in optimizer.state.items()
    }


def _made_up(model: Any, shape: tuple[int, ...]) -> Any:
    """Create an input of a given shape.

    It has token numbers where the model begins with an embedding, else the dtype of its parameters.
    """
    import torch

    for layer in model.modules():
        if next(layer.parameters(recurse=False), None) is None:
            continue
        if isinstance(layer, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            return torch.zeros(shape, dtype=torch.int64, device="cuda")
        break
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return torch.zeros(shape, dtype=dtype, device="cuda")
