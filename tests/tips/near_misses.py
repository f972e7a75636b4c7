"""Programs near each rule's fault but without it, and faulty ones."""

from __future__ import annotations

from dataclasses import dataclass

from tests.frameworks import test_advice
from tests.oom import test_explained
from tests.tips import (
    test_attributes_not_moved,
    test_checkpointing_off,
    test_commands,
    test_gradient_cycles,
    test_growing_input,
    test_kept_after_use,
    test_language_models,
    test_large_result,
    test_large_temporaries,
    test_needless_graphs,
    test_partly_used,
    test_predictions,
    test_sharded,
    test_streams,
    test_threads,
    test_unused_memory,
    test_written_out_activation,
)
from tests.tips.programs import FREEING, MODEL, REWRITING

LOOP = """
model = net({net})
optimizer = torch.optim.{optimizer}
for _ in range({steps}):
    loss = model(batch({rows})).square().mean()
    loss.backward()
    optimizer.step()
    {zero}
"""
PLAIN = {"net": "", "optimizer": "SGD(model.parameters())", "steps": 4, "rows": 256,
         "zero": "optimizer.zero_grad()"}  # fmt: skip


def loop(behind: str = "", **other: object) -> str:
    """A plain training loop, with something else in one place."""
    return LOOP.format(**{**PLAIN, **other}) + behind


@dataclass(frozen=True, kw_only=True)
class NearMiss:
    """A program in which a rule must be silent."""

    code: str
    everything: bool = False
    card: str = "H100 80GB"
    before: str = MODEL


def sharded(line: str) -> NearMiss:
    """Build a sharded training with a line of its own."""
    code = test_sharded.LAYERS + line + test_sharded.STEP
    return NearMiss(code=code, before=test_sharded.BEFORE, everything=True)


SILENT = {
    "cached_memory": NearMiss(
        code=loop("model.eval()\nwith torch.no_grad():\n    score = model(batch(65536))\n"),
        card="T4",
    ),
    "dead_graph_pool": NearMiss(
        code="model, x, graph = net(1024, 8), batch(65536), torch.cuda.CUDAGraph()\n"
        "with torch.no_grad(), torch.cuda.graph(graph):\n    y = model(x)\ngraph.replay()\n",
        everything=True,
    ),
    "fragmentation": NearMiss(code=loop(rows=4096)),
    "checkpoint_kept": NearMiss(
        code=loop("state = model.state_dict()\nmodel.load_state_dict(state)")
    ),
    "checkpoint_on_gpu": NearMiss(
        code="import io\nfile = io.BytesIO()\nmodel = net(2048, 8)\n"
        "torch.save(model.state_dict(), file)\nfile.seek(0)\n"
        "model.load_state_dict(torch.load(file, map_location='cpu'))"
    ),
    "two_models": NearMiss(
        code="import copy\nmodel = net()\ntwin = copy.deepcopy(model)\n"
        "(model(batch()) - twin(batch())).square().mean().backward()"
    ),
    "no_grad_missing": NearMiss(
        code=loop("model.eval()\nwith torch.no_grad():\n    score = model(batch(4096))")
    ),
    "graph_kept": NearMiss(
        code=loop().replace("loss.backward()", "loss.backward(); curve.append(loss)")
        + "\nlast = model(batch(4096))",
        before=MODEL + "curve = []",
    ),
    **{
        rule: NearMiss(code=test_needless_graphs.SILENT[name], card="RTX 3070")
        for rule, name in test_needless_graphs.NEAR.items()
    },
    "out_history": NearMiss(code="x = torch.zeros(8 << 20, device='cuda')\nOut = {1: x}"),
    "traceback_kept": NearMiss(
        code="""
def check(x):
    y = x * 2
    raise ValueError("a shape is wrong")

failed = []
for _ in range(3):
    try:
        check(torch.zeros(8 << 20, device="cuda"))
    except ValueError as e:
        failed.append(str(e))
    except TypeError as e:
        failed.append(e)
"""
    ),
    "reference_cycle": NearMiss(
        code="""
import weakref
class Node:
    pass
node = Node()
node.me, node.tensor = weakref.ref(node), torch.zeros(8 << 20, device="cuda")
del node
"""
    ),
    "gradient_cycle": NearMiss(code=test_gradient_cycles.SILENT["cleared in each step"]),
    "gradients_kept": NearMiss(
        code=loop("with torch.no_grad():\n    wide = model(batch(60000))"), card="T4"
    ),
    "autocast": NearMiss(
        code=loop(net="1024, 12", rows=8192).replace(
            "optimizer =",
            "model.forward = torch.autocast('cuda', torch.bfloat16)(model.forward)\noptimizer =",
        ),  # Accelerate and the tip's own line wrap `forward`
        everything=True,
    ),
    "autocast_copies": NearMiss(
        code=loop(
            "with torch.no_grad(), torch.autocast('cuda', torch.bfloat16):\n    model(batch())"
        ),
        card="T4",
    ),
    "data_parallel": NearMiss(
        code=loop(rows=16384).replace("net()", "nn.DataParallel(net())"), card="2xT4"
    ),
    "logits": NearMiss(
        code=test_language_models.PLAIN.format(words=32000, rows=2, length=512),
    ),
    "eager_attention": NearMiss(
        code="attention = nn.MultiheadAttention(256, 4, batch_first=True).cuda()\n"
        "x = torch.zeros(2, 2048, 256, device='cuda')\n"
        "attention(x, x, x)[0].sum().backward()",
    ),
    "checkpointing": NearMiss(
        code=loop(rows=8192).replace(
            "model(batch(8192))",
            "checkpoint_sequential(model, 3, batch(8192), use_reentrant=False)",
        ),
        everything=True,
        before=MODEL + "from torch.utils.checkpoint import checkpoint_sequential",
    ),
    "checkpointing_off": NearMiss(
        code=test_checkpointing_off.SILENT["an evaluation behind the training"],
        before=test_checkpointing_off.OWN,
        card="T4",
    ),
    "inplace_activations": NearMiss(
        code=loop(rows=8192).replace(
            "optimizer =", "for m in model.modules():\n    m.inplace = True\noptimizer ="
        ),
        everything=True,
    ),
    "optimizer_state": NearMiss(
        code=loop(optimizer="SGD(model.parameters())", rows=8192), everything=True
    ),
    "first_step": NearMiss(code=loop(optimizer="Adam(model.parameters())", steps=1)),
    "second_step_peak": NearMiss(code=loop(optimizer="Adam(model.parameters())", steps=2)),
    "ddp_buckets": NearMiss(code=loop(), everything=True),
    "fsdp_unit": NearMiss(code=loop(), everything=True),
    "fsdp_prefetch": sharded(
        "for block in model: block.set_modules_to_backward_prefetch([block])\n"
    ),
    "fsdp_reshard": sharded("model[-1].set_reshard_after_forward(False)\n"),
    "full_state": sharded("state = model.state_dict()\n"),
    "thread_kept": NearMiss(
        code=test_threads.SILENT["a thread that was ended"], before=MODEL + test_threads.WORKER
    ),
    "late_stream": NearMiss(
        code=loop(test_streams.LATE.format(before="", behind="torch.cuda.synchronize()")),
        everything=True,
    ),
    "zero_bucket": NearMiss(code=loop(), everything=True),
    "large_result": NearMiss(
        code="model = net(1024, 6).half().eval()\nwith torch.no_grad():\n"
        "    score = model(batch(65536).half())\n    score = score.mean(0).float()",
    ),
    "kept_after_use": NearMiss(
        code="x = torch.zeros(8 << 20, device='cuda')\ny = x * 2\nz = y * x"
    ),
    "unused_memory": NearMiss(code=test_unused_memory.READ_AGAIN),
    "partly_used": NearMiss(code=test_partly_used.IN_TURNS),
    "written_out_activation": NearMiss(
        code=test_written_out_activation.NET.format(formula="x[:, :512].repeat(1, 2).sigmoid() * x")
    ),
    "attributes_not_moved": NearMiss(
        code=test_attributes_not_moved.EMPTIED, before=test_attributes_not_moved.CACHING
    ),
    "large_temporaries": NearMiss(
        code="model = net(4096, 2).eval()\nwith torch.no_grad():\n"
        "    score = model(batch(16384, 4096)).mean().item()"
    ),
    "batch_size": NearMiss(code=loop(rows=8192)),
    "growing_input": NearMiss(
        code="model = net(1024, 2).eval()\nwith torch.no_grad():\n"
        "    for rows in (4096, 8192, 12288, 8192, 16384):\n        model(batch(rows))",
        card="T4",
    ),
    "grows_each_step": NearMiss(
        code=loop(steps=8).replace(
            "loss.backward()", "loss.backward(); seen.append(torch.zeros(8 << 20, device='cuda'))"
        ),
        before=MODEL + "import collections\nseen = collections.deque(maxlen=2)",
    ),
    "spilled_memory": NearMiss(code=loop(), everything=True),
    "other_process": NearMiss(code=loop(), everything=True),
    "framework_cache": NearMiss(code=loop(), everything=True),
    "preallocated": NearMiss(code=loop(), everything=True),
    "offload": NearMiss(
        code="model = net().eval()\nwith torch.no_grad():\n    model(batch(65536))",
        everything=True,
    ),
    "workspace": NearMiss(code="x = torch.zeros(64 << 20, device='cuda') * 2", everything=True),
    "cudnn_benchmark": NearMiss(
        code="torch.backends.cudnn.benchmark = True\n"
        "y = net()(batch(65536))\ndel y\ntorch.cuda.empty_cache()\n",
        everything=True,
    ),
    "pinned_memory": NearMiss(code="x = torch.zeros(1 << 20).pin_memory().cuda()", everything=True),
    "card_empty": NearMiss(
        code="x = torch.zeros(3 << 30, dtype=torch.uint8, device='cuda')\n" + loop(rows=65536),
        everything=True,
        card="RTX 3070",
    ),
}

SPOKEN = {
    **dict.fromkeys(p.rule for p in FREEING),
    **dict.fromkeys(p.rule for p in REWRITING),
    "cached_memory": test_predictions.test_empty_cache_gives_back_what_was_said,
    "dead_graph_pool": test_predictions.test_a_pool_whose_graph_is_gone_is_told_to_the_byte,
    "out_history": test_commands.test_out_is_found_freed_and_recorded,
    "traceback_kept": test_commands.test_the_traceback_of_a_failed_cell_is_found_and_freed,
    "gradient_cycle": test_gradient_cycles.test_the_cure_leaves_as_much_less_as_was_promised,
    **dict.fromkeys(
        ("retained_graph", "summed_losses", "unused_gradients"),
        test_needless_graphs.test_the_peak_falls_by_what_was_promised,
    ),
    "first_step": test_predictions.test_the_first_step_adds_what_was_foreseen,
    "second_step_peak": test_predictions.test_the_second_iteration_peaks_where_it_was_foreseen,
    "ddp_buckets": test_predictions.test_buckets_of_ddp_are_as_large_as_the_gradients,
    "fsdp_unit": test_predictions.test_a_unit_that_is_the_model_gathers_all_of_it,
    "fsdp_prefetch": test_sharded.test_the_peak_falls_by_what_was_said_where_the_line_is_pasted,
    "fsdp_reshard": test_sharded.test_the_peak_falls_by_what_was_said_where_the_line_is_pasted,
    "full_state": test_sharded.test_a_full_state_dict_goes_to_the_host,
    "thread_kept": test_threads.test_what_a_waiting_thread_keeps_is_told,
    "late_stream": test_streams.test_what_waits_is_told_with_what_would_be_reserved,
    "zero_bucket": test_predictions.test_a_bucket_of_zero_that_all_gradients_fill,
    "checkpointing_off": test_checkpointing_off.test_the_peak_falls_by_what_was_promised,
    "attributes_not_moved": (
        test_attributes_not_moved.test_emptying_the_attribute_frees_what_was_promised
    ),
    "large_result": (test_large_result.test_a_request_larger_than_the_card_is_told_with_its_place),
    "large_temporaries": (
        test_large_temporaries.test_an_expression_is_told_with_its_line_and_its_bytes
    ),
    "kept_after_use": test_kept_after_use.test_the_peak_falls_by_what_was_promised,
    "partly_used": test_partly_used.test_what_a_function_computes_whole_and_is_indexed,
    "unused_memory": test_unused_memory.test_an_attribute_that_no_operator_reads_any_more,
    "written_out_activation": (
        test_written_out_activation.test_the_peak_falls_by_what_was_promised
    ),
    "growing_input": test_growing_input.test_the_peak_falls_by_what_was_promised,
    "logits": test_language_models.test_the_pasted_code_saves_what_the_tip_promises,
    "eager_attention": test_language_models.test_the_pasted_code_saves_what_the_tip_promises,
    "batch_size": test_explained.test_a_smaller_batch_is_estimated_and_fits,
    "spilled_memory": (
        test_predictions.test_what_windows_put_into_the_hosts_memory_is_told_with_its_bytes
    ),
    "other_process": test_predictions.test_another_process_on_a_full_card_is_named_with_its_bytes,
    "framework_cache": test_advice.test_an_unused_pool_is_given_back_to_the_byte,
    "preallocated": test_advice.test_jax_that_took_the_card_and_does_not_use_it,
    "workspace": test_predictions.test_a_smaller_workspace_gives_back_what_was_said,
    "cudnn_benchmark": test_predictions.test_without_cudnns_search_the_peak_falls_by_what_was_said,
    "pinned_memory": test_predictions.test_idle_pinned_memory_is_told_from_one_gibibyte_on,
    "card_empty": test_predictions.test_a_batch_that_can_grow_grows_to_what_fits,
}
"""The test in which a rule speaks and its bytes are measured; None: a program of programs.py."""
