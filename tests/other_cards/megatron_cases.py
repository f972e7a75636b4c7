"""Megatron-LM's functional tests, run as the last rank of virtual machines of eight cards.

`megatron_cases.csv` has the settings of cases with `transformer-impl: local` (no
TransformerEngine in the layers) and what torch had allocated on the rank that writes the log, the
last one: after a step, and at most, in the last iteration that is kept.
https://github.com/NVIDIA/Megatron-LM/tree/d98e8a64ddf34856e74b24714e3bedb2f5a39553/tests/functional_tests/test_cases

The layers, ranks, gradients' buffers and optimizers are those of the package megatron-core. Its
training script and data are not in the package: what follows does the same with zeros. Apex, which
the authors' image has, is missing. Its softmax allocates its result alone and works in place
backward; a stand-in does that. Its Adam and layer norm are torch's here, which hold as much.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import types
import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nbmem import virtual
from tests.other_cards.rows import Compared

TABLE = Path(__file__).with_suffix(".csv")
SOURCE = "[Megatron-LM's tests](https://github.com/NVIDIA/Megatron-LM/tree/d98e8a64ddf34856e74b24714e3bedb2f5a39553/tests/functional_tests/test_cases)"
FIGURES = ("allocated after a step", "`max_memory_allocated`")
WORLD = 8
LAYERS, HIDDEN, HEADS, WORDS, LENGTH = 12, 512, 8, 50257, 1024
MICRO_BATCH, BATCH = 4, 32
STEPS = 2
"""In the second step the optimizer's state is there."""
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""As in the cases' yaml."""
BUCKET = 40_000_000
"""Least parameters in a bucket of gradients where their reduction overlaps with backward."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a case's yaml says of parallelism and types."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    experts: int | None = None
    fp16: bool = False
    distributed_optimizer: bool = False
    scale_by_layer: bool = True
    sequence_parallel: bool = False
    bias: bool = True
    apex: bool = True
    """Whether the case runs with Apex; one uninstalls it before."""

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the weights."""
        return torch.float16 if self.fp16 else torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case on one card.

    Attributes:
        name: Its folder.
        card: The card.
        allocated: Bytes after a step.
        peak: Bytes at most.
        settings: What its yaml says.
    """

    name: str
    card: str
    allocated: int
    peak: int
    settings: Settings = field(default_factory=Settings)


def cases() -> list[Case]:
    """Read the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [
            Case(
                name=row["case"],
                card=row["card"],
                allocated=int(row["allocated"]),
                peak=int(row["peak"]),
                settings=Settings(**json.loads(row["settings"])),
            )
            for row in csv.DictReader(file)
        ]


def run(case: Case) -> tuple[Compared, Compared]:
    """Run a case on virtual cards, as their last rank. It becomes this process's only one.

    Returns:
        What is allocated after a step, and at most.
    """
    warnings.simplefilter("ignore")
    os.environ.update(ENVIRONMENT)
    _stand_in_for_apex()
    virtual.activate(case.card, conf="", defer=True)
    pair = [
        {"name": case.name, "card": case.card, "measured": measured}
        for measured in (case.allocated, case.peak)
    ]
    try:
        said, error = _train(case.settings), ""
    except Exception as err:  # noqa: BLE001 - one case that cannot run is a row of the table
        said, error = (0, 0), f"{type(err).__name__}: {err}".splitlines()[0]
    finally:
        virtual.deactivate()
    first, second = (
        Compared(**one, said=figure, error=error) for one, figure in zip(pair, said, strict=True)
    )
    return first, second


def _stand_in_for_apex() -> None:
    for name in ("scaled_upper_triang_masked_softmax_cuda", "scaled_masked_softmax_cuda"):
        module = types.ModuleType(name)
        vars(module).update(
            forward=lambda scores, *_: torch.empty_like(scores),
            backward=lambda gradient, *_: gradient,
            get_batch_per_block=lambda *_: 4,
        )
        sys.modules[name] = module
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    WrappedTorchNorm.__new__ = _layer_norm
    # megatron-core looks for it also where TransformerEngine is missing; then it multiplies itself.
    moe_utils.te_general_gemm = None


def _layer_norm(_cls: Any, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
    """Make torch's layer norm where Apex's is missing; megatron-core refuses it for sequences."""
    norm = torch.nn.LayerNorm(hidden_size, eps)
    for parameter in norm.parameters():
        vars(parameter)["sequence_parallel"] = config.sequence_parallel
    return norm


def _train(s: Settings) -> tuple[int, int]:
    """Train as the last rank; return what is allocated after a step, and at most."""
    from megatron.core import optimizer as optimizers
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.pipeline_parallel import get_forward_backward_func

    if s.apex:
        optimizers.Adam = partial(torch.optim.AdamW, fused=True)
    torch.distributed.init_process_group("nccl", rank=WORLD - 1, world_size=WORLD)
    parallel_state.initialize_model_parallel(
        s.tensor,
        s.pipeline,
        expert_model_parallel_size=s.expert,
        expert_tensor_parallel_size=s.expert_tensor,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    torch.use_deterministic_algorithms(True)  # noqa: FBT003
    model, config = _model(s)
    optimizer = _optimizer(s, model)
    _connect(config, model, optimizer, overlap=s.distributed_optimizer)
    forward_backward = get_forward_backward_func()
    for _ in range(STEPS):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=_forward_step,
            data_iterator=iter(()),
            model=[model],
            num_microbatches=BATCH // MICRO_BATCH // parallel_state.get_data_parallel_world_size(),
            seq_length=LENGTH,
            micro_batch_size=MICRO_BATCH,
            forward_only=False,
        )
        norms = optimizer.step()
    figures = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    del losses, norms  # their script holds them through the next step
    return figures


def _model(s: Settings) -> tuple[Any, Any]:
    """Build the last stage of the model under Megatron's DistributedDataParallel."""
    from megatron.core import distributed, parallel_state
    from megatron.core.enums import ModelType
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module

    config = _config(s)
    divisor = 128 * s.tensor
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(num_experts=s.experts),
        -(-WORDS // divisor) * divisor,
        LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=True,
    )
    model.model_type = ModelType.encoder_or_decoder
    overlap = s.distributed_optimizer
    ranks = parallel_state.get_data_parallel_world_size()
    model = Float16Module(config, model.cuda())
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        wrapped = distributed.DistributedDataParallel(
            config,
            distributed.DistributedDataParallelConfig(
                grad_reduce_in_fp32=not s.fp16,
                use_distributed_optimizer=overlap,
                overlap_grad_reduce=overlap,
                overlap_param_gather=overlap,
                bucket_size=max(BUCKET, 1_000_000 * ranks) if overlap else None,
            ),
            model,
        )
    return wrapped, config


def _config(s: Settings) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    experts = {
        "num_moe_experts": s.experts,
        "moe_router_load_balancing_type": "sinkhorn",
        "moe_router_topk": 1,
    }
    return TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        tensor_model_parallel_size=s.tensor,
        pipeline_model_parallel_size=s.pipeline,
        expert_model_parallel_size=s.expert,
        expert_tensor_parallel_size=s.expert_tensor,
        sequence_parallel=s.sequence_parallel,
        bf16=not s.fp16,
        fp16=s.fp16,
        params_dtype=s.dtype,
        pipeline_dtype=s.dtype,
        autocast_dtype=s.dtype,
        apply_query_key_layer_scaling=s.scale_by_layer,
        attention_softmax_in_fp32=s.scale_by_layer,
        masked_softmax_fusion=s.apex,
        bias_activation_fusion=not s.experts,
        bias_dropout_fusion=True,
        add_bias_linear=s.bias,
        gradient_accumulation_fusion=False,
        deterministic_mode=True,
        deallocate_pipeline_outputs=True,
        **(experts if s.experts else {}),
    )


def _optimizer(s: Settings, model: Any) -> Any:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    options = OptimizerConfig(
        optimizer="adam",
        lr=1.5e-4,
        min_lr=1e-5,
        weight_decay=1e-2,
        bf16=not s.fp16,
        fp16=s.fp16,
        params_dtype=s.dtype,
        clip_grad=1.0,
        use_distributed_optimizer=s.distributed_optimizer,
        overlap_param_gather=s.distributed_optimizer,
        log_num_zeros_in_grad=True,
    )
    return get_megatron_optimizer(options, [model])


def _connect(config: Any, model: Any, optimizer: Any, *, overlap: bool) -> None:
    from megatron.core.distributed import finalize_model_grads

    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if overlap:
        config.no_sync_func = model.no_sync
        config.param_sync_func = model.start_param_sync


def _forward_step(_data: Any, model: Any) -> tuple[torch.Tensor, Any]:
    """Run a micro-batch; return its losses and what sums them up."""
    shape = MICRO_BATCH, LENGTH
    words, labels, positions = (torch.zeros(shape, dtype=torch.long).cuda() for _ in range(3))
    weights = torch.ones(shape).cuda()
    mask = torch.zeros(MICRO_BATCH, 1, LENGTH, LENGTH, dtype=torch.bool).cuda()
    return model(words, positions, mask, labels=labels), partial(_loss, weights)


def _loss(weights: torch.Tensor, losses: torch.Tensor) -> tuple[Any, Any, dict[str, Any]]:
    weights = weights.view(-1)
    loss = (losses.float().view(-1) * weights).sum()
    count = weights.sum().detach().to(torch.int)
    return loss, count, {"lm loss": torch.cat([loss.detach().view(1), count.view(1)])}
