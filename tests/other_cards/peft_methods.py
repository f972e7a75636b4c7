"""peft's comparison of fine-tuning methods, run on the virtual card that its authors had.

Llama 3.2 3B in bfloat16, 5,000 steps of four samples on an L40S, torch 2.13. `peft_methods.csv` has
the highest reserved bytes of each run, the trainable parameters, what its adapter's configuration
has other than peft's defaults, and what its training has other than theirs.
https://github.com/huggingface/peft/tree/5d602fdbff04c33c1c4de55cda9d4ae1d7cb7e40/method_comparison/MetaMathQA

Their data is not here. It is cut at 768 tokens, and their batches fall in length from one release
of the cache to the next, so the first one behind a release decides. A run here has a short step,
releases the cache, and has a step of 768 tokens. Nothing is fitted.
"""

from __future__ import annotations

import csv
import gc
import json
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nbmem import virtual
from nbmem.estimates.language_models.models import find_model
from tests.other_cards.rows import Compared

TABLE = Path(__file__).with_suffix(".csv")
SOURCE = "[peft's methods](https://github.com/huggingface/peft/tree/5d602fdbff04c33c1c4de55cda9d4ae1d7cb7e40/method_comparison/MetaMathQA)"
FIGURE = "`max_memory_reserved`"
CARD = "L40S"
MODEL = "llama-3.2-3b"
BATCH, LONGEST, SHORT = 4, 768, 100
STEPS, WARM_UP = 5000, 500
DEFAULTS = {"lr": 1e-4, "weight_decay": 0.1}


@dataclass(frozen=True, kw_only=True)
class Method:
    """A run of the comparison.

    Attributes:
        name: The experiment.
        reserved: Highest reserved bytes, without what was reserved before the model.
        trainable: Parameters that it trains.
        adapter: The adapter's configuration beside peft's defaults; {} for all weights.
        training: What its training has beside their defaults.
    """

    name: str
    reserved: int
    trainable: int
    adapter: dict[str, Any]
    training: dict[str, Any]


def methods() -> list[Method]:
    """Read the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [
            Method(
                name=row["experiment"],
                reserved=int(row["max_reserved"]),
                trainable=int(row["trainable"]),
                adapter=json.loads(row["adapter"]),
                training=json.loads(row["training"] or "{}"),
            )
            for row in csv.DictReader(file)
        ]


def run(method: Method) -> Compared:
    """Run a method on the virtual card. It becomes this process's only one."""
    warnings.simplefilter("ignore")
    virtual.activate(CARD, conf="", defer=True)
    found = {"name": method.name, "card": CARD, "measured": method.reserved}
    try:
        return Compared(**found, said=_reserved(method))
    except Exception as err:  # noqa: BLE001 - one method that cannot run is a row of the table
        return Compared(**found, error=f"{type(err).__name__}: {err}".splitlines()[0])
    finally:
        virtual.deactivate()


def _reserved(method: Method) -> int:
    torch.nn.Linear(1, 1).to("cuda")
    before = torch.cuda.max_memory_reserved()
    model = _adapted(_base(), method)
    _check(model, method)
    optimizer = _optimizer(model, method.training)
    _evaluate(model, adapted=bool(method.adapter))
    model.train()
    _train(model, optimizer, adaptive=method.adapter.get("peft_type") == "ADALORA")
    return torch.cuda.max_memory_reserved() - before


def _base() -> Any:
    """Build the model as `from_pretrained` places it: one large segment, then tensor by tensor."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_utils import caching_allocator_warmup

    code = find_model(MODEL).code
    config = eval(code, {"AutoConfig": AutoConfig})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    places = {name: torch.device("cuda", 0) for name, _ in model.named_parameters()}
    caching_allocator_warmup(model, places, None)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        module, _, leaf = name.rpartition(".")
        made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        setattr(
            model.get_submodule(module), leaf, torch.nn.Parameter(made) if is_parameter else made
        )
    model.tie_weights()
    return model.eval()


def _adapted(model: Any, method: Method) -> Any:
    if not method.adapter:
        return model
    import peft

    options = dict(method.adapter)
    kind = peft.PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType(options.pop("peft_type"))]
    cast = method.training.get("autocast_adapter_dtype", True)
    config = kind(task_type="CAUSAL_LM", **options)
    return peft.get_peft_model(model, config, autocast_adapter_dtype=cast)


def _check(model: Any, method: Method) -> None:
    """Raise unless as many parameters are trained as theirs were."""
    count = getattr(model, "get_nb_trainable_parameters", None)
    trained = count()[0] if count else model.num_parameters()
    if trained != method.trainable:
        message = f"{trained:,d} trained parameters, theirs {method.trainable:,d}"
        raise ValueError(message)


def _optimizer(model: Any, training: dict[str, Any]) -> torch.optim.Optimizer:
    if training.get("optimizer_type") == "lora-fa":
        from peft.optimizers import create_lorafa_optimizer

        made: torch.optim.Optimizer = create_lorafa_optimizer(model, **training["optimizer_kwargs"])
        return made
    kind = getattr(torch.optim, training.get("optimizer_type", "AdamW"))
    optimizer: torch.optim.Optimizer = kind(model.parameters(), **DEFAULTS)
    return optimizer


def _evaluate(model: Any, *, adapted: bool) -> None:
    """Compute the loss of one batch without adapters, as they do before the first step."""
    with torch.inference_mode(), model.disable_adapter() if adapted else nullcontext():
        batch = _batch(LONGEST)
        logits = model(**batch).logits
        for logit, target in zip(logits, batch["input_ids"], strict=True):
            torch.nn.functional.cross_entropy(logit[:-1], target[1:], reduction="none")


def _train(model: Any, optimizer: torch.optim.Optimizer, *, adaptive: bool) -> None:
    from transformers import get_cosine_schedule_with_warmup

    schedule = get_cosine_schedule_with_warmup(optimizer, WARM_UP, STEPS)
    for step, length in enumerate((SHORT, LONGEST), 1):
        if length == LONGEST:
            torch.cuda.empty_cache()
        batch = _batch(length)
        labels = batch["input_ids"].clone()
        for i in range(BATCH):
            labels[i, length - i :] = -100
        batch["labels"] = labels
        optimizer.zero_grad()
        outputs = model(**batch, num_items_in_batch=BATCH * length)
        outputs.loss.backward()  # `outputs` is held until the next forward has returned
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if adaptive:
            model.base_model.update_and_allocate(step)
    gc.collect()


def _batch(length: int) -> dict[str, torch.Tensor]:
    made = torch.ones(BATCH, length, dtype=torch.long)
    return {"input_ids": made.cuda(), "attention_mask": made.cuda()}
