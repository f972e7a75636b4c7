"""Several cards: counters of each, and calls to the right one."""

import io
import threading

import pytest
import torch
from torch import nn

from nbmem import virtual
from nbmem.core.errors import UsageError
from nbmem.core.units import MIB
from tests.forked_command import run_forked

pytestmark = pytest.mark.filterwarnings("ignore::nbmem.virtual.NbmemWarning")


@pytest.fixture
def two():
    with virtual.activated("2xT4"):
        yield virtual.gpus()


@pytest.fixture
def mixed():
    with virtual.activated("H100, T4"):
        yield virtual.gpus()


def share(device, steps=3):
    """Run one stage of a program on one card."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        nn.functional.cross_entropy(
            model(torch.randn(64, 256, device=device)),
            torch.zeros(64, dtype=torch.int64, device=device),
        ).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield model, optimizer


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        ("T4", ["T4"]),
        ("2xT4", ["T4", "T4"]),
        ("2 X rtx-4090", ["RTX 4090", "RTX 4090"]),
        ("H100, 2xL4", ["H100 80GB", "L4", "L4"]),
    ],
)
def test_cards_are_chosen_by_every_spelling(names, keys):
    assert [card.key for card in virtual.find_cards(names)] == keys


@pytest.mark.parametrize("names", ["0xT4", "17xT4", "9xT4, 8xL4"])
def test_too_many_cards_and_none_are_refused(names):
    with pytest.raises(UsageError, match="a virtual machine has from 1 to 16, as in 2xT4"):
        virtual.activate(names)
    assert virtual.gpus() == ()


def test_a_share_takes_on_the_second_card_what_it_takes_alone():
    with virtual.activated("T4"):
        alone = [torch.cuda.memory_stats() for _ in share("cuda")]
    with virtual.activated("2xT4"):
        both = zip(share("cuda:1"), share("cuda:0", steps=5), strict=False)
        beside = [torch.cuda.memory_stats(1) for _ in both]
    assert beside == alone


def test_the_cards_counters_are_their_own(two):
    first = torch.empty(1 * MIB, dtype=torch.uint8, device="cuda:0")
    second = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda:1")
    del second
    assert [torch.cuda.memory_allocated(i) for i in (0, 1)] == [MIB, 0]
    assert [torch.cuda.max_memory_allocated(i) for i in (0, 1)] == [MIB, 4 * MIB]
    torch.cuda.reset_peak_memory_stats(1)
    assert [torch.cuda.max_memory_allocated(i) for i in (0, 1)] == [MIB, 0]
    assert [torch.cuda.memory_reserved(i) for i in (0, 1)] == [2 * MIB, 20 * MIB]
    torch.cuda.empty_cache()
    assert [torch.cuda.memory_reserved(i) for i in (0, 1)] == [2 * MIB, 0]
    free, total = torch.cuda.mem_get_info(1)
    assert total - free == two[1].card.context_bytes
    addresses = [first.data_ptr(), torch.empty(1, device="cuda:1").data_ptr()]
    assert addresses[0] != addresses[1]


def test_a_context_exists_only_where_the_program_has_been(two):
    torch.cuda.init()
    assert torch.cuda.is_initialized()
    assert [gpu.context_bytes for gpu in two] == [0, 0]
    with torch.cuda.device(1):
        assert torch.ones(2, device="cuda").get_device() == torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
    assert [bool(gpu.context_bytes) for gpu in two] == [False, True]


def test_each_thread_has_its_own_current_card(two):
    torch.cuda.set_device(1)
    seen = []

    def work():
        seen.append(torch.cuda.current_device())
        torch.cuda.set_device("cuda:0")
        seen.append(torch.ones(2, device="cuda").device.index)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, 0]
    assert torch.empty(1).cuda().get_device() == 1


def test_tensors_move_between_cards_with_their_values(mixed):
    here = torch.tensor([3, 4], device="cuda:0")
    there = here.to("cuda:1", non_blocking=True)
    assert (there.device, there.tolist()) == (torch.device("cuda", 1), [3, 4])
    assert there.cuda(1) is there
    assert there.cuda().device == here.device
    back = torch.empty_like(here).copy_(there)
    assert (back.device.index, back.tolist()) == (0, [3, 4])
    assert torch.zeros_like(there, device=0).device == here.device
    assert there.new_zeros(2).device == torch.as_tensor(there).device == there.device
    assert there.untyped_storage().device == there.device
    torch._foreach_copy_([there, torch.ones(2, device="cuda:0")], [here * 2, torch.ones(2)])
    assert there.tolist() == [6, 8]


def test_a_number_is_a_device(two):
    for device in (torch.device(1), torch.device("cuda:1")):
        assert isinstance(device, torch.device)
        assert device == torch.ones(2).to(device).device == torch.ones(2, device=1).device


def test_a_copy_of_a_model_for_ddp_stays_on_its_card(two):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).to("cuda:1"))
        wrapped(torch.ones(2, 64, device="cuda:1")).sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    assert wrapped.device == torch.device("cuda", 1)
    assert [bool(gpu.context_bytes) for gpu in two] == [False, True]


def test_a_model_spread_over_two_cards_trains(two):
    first, second = nn.Linear(512, 512).to("cuda:0"), nn.Linear(512, 64).to("cuda:1")
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.Adam(parameters)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.float16):
            middle = first(torch.randn(32, 512, device="cuda:0"))
            loss = second(middle.to("cuda:1")).float().sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()
    for layer, card in ((first, 0), (second, 1)):
        weight = layer.weight
        held = [weight.grad, *(optimizer.state[weight][k] for k in ("exp_avg", "exp_avg_sq"))]
        assert {tensor.get_device() for tensor in (weight, *held)} == {card}


def test_two_cards_in_one_operator_are_torchs_error(two):
    here, there = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
    sentence = (
        "Expected all tensors to be on the same device, but found at least two devices, "
        "cuda:0 and cuda:1!"
    )
    for mixed_up in (lambda: here + there, lambda: torch.cat([here, there])):
        with pytest.raises(RuntimeError, match=sentence):
            mixed_up()


def test_a_card_that_is_not_there_is_torchs_error(two):
    for ask in (
        lambda: torch.ones(2, device="cuda:2"),
        lambda: torch.cuda.set_device(2),
        lambda: torch.ones(2).cuda(7),
    ):
        with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
            ask()
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(2)
    torch.cuda.init()
    with pytest.raises(RuntimeError, match=r"Invalid device argument 2: did you call init\?"):
        torch.cuda.memory_allocated(2)


def test_a_full_card_is_named(mixed):
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *facts: seen.append(facts[0]))
    with pytest.raises(torch.OutOfMemoryError, match=r"GPU 1 has a total capacity of 14\.56 GiB"):
        torch.empty(16 << 30, dtype=torch.uint8, device="cuda:1")
    assert seen == [1]
    assert torch.empty(16 << 30, dtype=torch.uint8, device="cuda:0").is_cuda


def test_the_snapshot_has_a_trace_for_each_card(two):
    torch.cuda.memory._record_memory_history()
    held = torch.empty(100, device="cuda:1")
    snapshot = torch.cuda.memory._snapshot()
    assert [len(trace) for trace in snapshot["device_traces"]] == [0, 2]
    assert [segment["device"] for segment in snapshot["segments"]] == [1]
    assert snapshot["segments"][0]["address"] == held.data_ptr()


def test_nvml_sees_every_card(mixed):
    import pynvml

    held = torch.empty(1, device="cuda:1")
    assert pynvml.nvmlDeviceGetCount() == 2
    properties = torch.cuda.get_device_properties(1)
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
    assert pynvml.nvmlDeviceGetName(handle) == properties.name == "Tesla T4"
    assert pynvml.nvmlDeviceGetIndex(handle) == 1
    processes = [
        pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(i))
        for i in (0, 1)
    ]
    assert processes[0] == []
    assert processes[1][0].usedGpuMemory == mixed[1].card.context_bytes + 2 * MIB
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlDeviceGetHandleByIndex(2)
    del held


def test_streams_and_events_belong_to_a_card(two):
    stream = torch.cuda.Stream(device=1)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() == stream
        assert torch.cuda.current_stream(0) == torch.cuda.default_stream(0)
        side = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.current_device() == 0
    assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1) != stream
    assert stream.record_event().device == side.device
    segment = torch.cuda.memory_snapshot()[0]
    assert (segment["device"], segment["stream"]) == (1, stream.cuda_stream)


def test_files_keep_the_card_unless_it_is_mapped(two):
    file = io.BytesIO()
    torch.save(torch.arange(3, device="cuda:1"), file)
    for where, card in ((None, 1), ("cuda:0", 0), ({"cuda:1": "cuda:0"}, 0)):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert (loaded.get_device(), loaded.tolist()) == (card, [0, 1, 2])


def data_parallel(steps):
    """Return the second card's requests and the bytes left on each."""
    model = nn.Sequential(nn.Linear(1000, 2000), nn.ReLU(), nn.Linear(2000, 10)).cuda()
    spread = nn.DataParallel(model)
    after = []
    for _ in range(steps):
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history()
        result = spread(torch.randn(64, 1000))
        assert (result.get_device(), result.size(0)) == (0, 64)
        result.sum().backward()
        del result
        trace = torch.cuda.memory._snapshot()["device_traces"][1]
        after.append([torch.cuda.memory_allocated(i) for i in (0, 1)])
    assert {p.grad.get_device() for p in model.parameters()} == {0}
    return [e["size"] for e in trace if e["action"] == "alloc"], after


def test_data_parallel_takes_what_torchs_copies_take(two):
    taken, after = data_parallel(steps=3)
    half = 32
    weights = 2000 * 1000 + 2000 + 10 * 2000 + 10
    numbers = [
        half * 1000,  # the scattered input
        weights,  # the broadcast's flat buffer; the replica's weights are views of it
        *(half * 2000, half * 2000, half * 10),  # linear, ReLU, linear
        half * 10,  # the result's gradient, scattered
        *(half * 2000, 10 * 2000, 10),  # backward of linear: input, weight, bias
        half * 2000,  # of ReLU
        *(2000 * 1000, 2000),  # of linear: weight, bias
        weights,  # the gradients as one flat tensor, to be summed on the first card
    ]
    assert taken == [4 * number for number in numbers]
    # Threads come and go with each step, their cuBLAS handles stay: nothing grows.
    assert after[0] == after[1] == after[2]
    shared = two[1].allocator.rules.shares_blas_workspace
    workspaces = 2 * (8320 << 10) + (0 if shared else MIB)
    assert after[0][1] == workspaces
    nccl = two[1].card.nccl_bytes
    assert two[1].context_bytes == two[1].card.context_bytes + 2 * two[1].card.cublas_bytes + nccl


def test_one_flat_buffer_of_a_broadcast_lives_at_a_time(two):
    tensors = [torch.empty(MIB, device="cuda:0") for _ in range(4)]  # 4 MiB each: two in 10 MB
    before = torch.cuda.memory_allocated(0)
    copies = nn.parallel.comm.broadcast_coalesced(tensors, [0, 1])
    assert torch.cuda.max_memory_allocated(0) - before == 8 * MIB
    assert torch.cuda.max_memory_allocated(1) == torch.cuda.memory_allocated(1) == 16 * MIB
    assert [[t.get_device() for t in of_card] for of_card in copies] == [[0] * 4, [1] * 4]


def test_a_report_says_what_the_other_card_held(two):
    import nbmem

    with nbmem.trace("both", namespace={}) as trace:
        model, _ = list(share("cuda:0"))[-1]
        other = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda:1")
    report, second = trace.report(), trace.report(1)
    assert (report.device.index, second.device.index) == (0, 1)
    assert second.peak.allocated == 10 * MIB
    note = next(note for note in report.notes if "cuda:1" in note)
    assert note.startswith("cuda:1 (Tesla T4) was used, too: up to 10.0 MiB allocated")
    assert "--device 1" in note
    assert "cuda:1" in str(trace)
    del model, other


SCRIPT = """
import torch

first = torch.empty(3 << 20, dtype=torch.uint8, device="cuda:0")
second = [torch.empty(5 << 20, dtype=torch.uint8, device="cuda:1") for _ in range(3)]
"""


def test_a_script_runs_on_two_and_each_has_its_report(tmp_path):
    script, saved = tmp_path / "train.py", tmp_path / "train.nbmem"
    script.write_text(SCRIPT)

    def nbmem(*arguments):
        return run_forked([*map(str, arguments)], tmp_path, {}, timeout=300)

    done = nbmem("run", script, "--gpu", "2xT4", "--save", saved)
    assert done.returncode == 0, done.stderr
    assert " on cuda:1, one of 2 cards: fits a Tesla T4 " in done.stdout.splitlines()[0]
    assert ": 15.0 MiB allocated" in done.stdout
    assert "train.py on Tesla T4 (cuda:1, virtual)" in done.stdout
    assert "- cuda:0 (Tesla T4) was used, too: up to 3.0 MiB allocated" in done.stdout
    first = nbmem("report", saved, "--device", "0").stdout
    assert " on cuda:0, one of 2 cards: " in first.splitlines()[0]
    assert ": 3.0 MiB allocated" in first
    refused = nbmem("plan", script, "--gpu", "2xT4")
    assert refused.returncode == 2
    assert "An estimate is about one card, and '2xT4' is a machine of 2." in refused.stderr
