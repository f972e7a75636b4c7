"""Values that a program reads from the card."""

import warnings

import pytest
import torch

from nbmem import virtual


def test_one_note_says_that_values_are_not_computed():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with virtual.activated("H100") as gpu:
            x = torch.randn(100, 100, device="cuda")
            x.sum().item()
            x.mean().item()
            x.cpu()
    mine = [w for w in caught if issubclass(w.category, virtual.NbmemWarning)]
    assert len(mine) == len(gpu.notes) == 1
    assert "no values are computed" in gpu.notes[0]


def test_known_values_are_exact(gpu):
    lengths = torch.tensor([3, 1, 2]).cuda()
    assert lengths.tolist() == [3, 1, 2]
    assert lengths.max().item() == 3
    assert (lengths + 1).cpu().tolist() == [4, 2, 3]
    assert lengths[1].item() == 1
    mask = torch.arange(4, device="cuda")[None] < lengths[:, None]
    assert mask.sum().item() == 6
    assert mask.nonzero().size() == (6, 2)
    assert torch.randn(3, 4, device="cuda")[mask].size() == (6,)
    lengths.mul_(2)
    assert lengths.tolist() == [6, 2, 4]
    assert torch.repeat_interleave(torch.arange(3, device="cuda"), lengths).numel() == 12
    assert gpu.notes == []


def test_positions_of_a_batch_of_long_texts_are_known(gpu):
    """transformers tests them in a run without a cache to leave the mask out."""
    positions = torch.arange(4096, device="cuda").expand(16, -1)
    steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
    assert ((steps != 1).cumsum(-1)[:, -1] == 0).all()
    assert gpu.notes == []


def test_a_mask_of_ones_in_floats_is_known_to_have_no_gaps(gpu):
    """transformers tests masks that a model creates by `torch.ones(batch, length)`."""
    mask = torch.ones(8, 512, device="cuda")
    assert mask.to(torch.bool).all()
    assert mask.sum() == mask.numel()
    mask[0] = torch.randn(512, device="cuda")
    assert mask.sum() != mask.numel()  # no longer known
    assert torch.zeros(1 << 20, device="cuda").sum().item() == 1.0  # nor are large ones


def test_what_depends_on_unknown_values_is_unknown(gpu):
    total = torch.zeros(1, device="cuda")
    assert total.item() == 0.0
    total += torch.randn(5, device="cuda").sum()
    assert total.item() == 1.0


def test_a_known_side_can_decide(gpu):
    unknown = torch.randn(3, device="cuda") > 0
    assert (unknown | torch.ones(3, dtype=torch.bool, device="cuda")).tolist() == [True] * 3
    assert not (unknown & torch.zeros(3, dtype=torch.bool, device="cuda")).any().item()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_loop_over_tokens_ends_where_the_program_says_so(gpu, mode):
    """As `generate()`: which sequence saw its last token is unknown, the length limit is not."""
    with mode():
        unfinished = torch.ones(2, dtype=torch.int64, device="cuda")
        for length in range(3):
            last = torch.randn(2, 100, device="cuda").argmax(-1)
            done = torch.isin(last, torch.tensor([7], device="cuda"))
            done = done | torch.full((2,), length == 2, device="cuda")
            unfinished = unfinished & ~done
            assert bool(unfinished.max() == 0) is (length == 2)


ENDS = """
import torch
unfinished = torch.ones(2, dtype=torch.int64, device="cuda")
for length in range(3):
    last = torch.randn(2, 100, device="cuda").argmax(-1)
    done = torch.isin(last, torch.tensor([7], device="cuda"))
    unfinished = unfinished & ~(done | torch.full((2,), length == 2, device="cuda"))
    if unfinished.max() == 0:
        break
"""


@pytest.mark.parametrize("place", ["transformers/generation/utils.py", "cell.py"])
def test_one_note_says_that_no_word_is_assumed_to_end_a_text(gpu, place):
    names = {}
    exec(compile(ENDS, f"/site-packages/{place}", "exec"), names)
    assert names["length"] == 2
    found = [note for note in gpu.notes if "ends a text" in note]
    assert len(found) == ("generation" in place)


def test_a_known_length_alone_is_no_assumption(gpu):
    code = ENDS.replace("done | ", "")
    exec(compile(code, "/site-packages/transformers/generation/utils.py", "exec"), {})
    assert not any("ends a text" in note for note in gpu.notes)


def test_a_context_that_grows_on_a_full_card_leaves_nothing_free(gpu):
    full = torch.empty((gpu.free_bytes >> 21 << 21) - (1 << 30), dtype=torch.uint8, device="cuda")
    gpu.library_bytes += 2 << 30
    assert gpu.free_bytes == torch.cuda.mem_get_info()[0] == 0
    with pytest.raises(torch.OutOfMemoryError, match="of which 0 bytes is free"):
        torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    del full


def test_a_loop_that_waits_for_values_ends_and_says_so(gpu):
    """As the rejection sampling of torch.distributions.VonMises."""
    done = torch.zeros(4, dtype=torch.bool, device="cuda")
    rounds = 0
    while not done.all():
        done = done | (torch.randn(4, device="cuda") > 0)
        rounds += 1
    assert rounds < 1000
    assert any("a loop waits" in note for note in gpu.notes)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_larger_of_two_is_the_same_however_often_it_is_asked_for(gpu, mode):
    """As detectors paste their masks: a slice between two bounds, once a mask."""
    boxes = (torch.randn(300, 2, device="cuda") * 100).to(torch.int64)
    line, patch = torch.zeros(400, device="cuda"), torch.zeros(1, device="cuda")

    with mode():
        for box in boxes:
            low, high = max(box[0], 0), min(box[1] + 1, 400)
            line[low:high] = patch[low - box[0] : high - box[0]]

    assert not any("a loop waits" in note for note in gpu.notes)


def test_a_healthy_run_passes_the_checks_of_libraries(gpu):
    loc, scale = torch.randn(4, device="cuda"), torch.rand(4, device="cuda")
    torch.distributions.Normal(loc, scale).log_prob(torch.randn(4, device="cuda"))
    torch.distributions.Beta(scale, scale).rsample()
    window = torch.hann_window(64, device="cuda")
    spectrum = torch.stft(
        torch.randn(2, 400, device="cuda"), 64, window=window, return_complex=True
    )
    assert torch.istft(spectrum, 64, window=window).size() == (2, 400)


def test_what_is_written_through_a_mask_is_known(gpu):
    labels = torch.tensor([3, 0, 2, 0]).cuda()
    labels[labels == 0] = -100
    assert labels.tolist() == [3, -100, 2, -100]
    table = torch.zeros(3, 2, dtype=torch.int64, device="cuda")
    mask = torch.tensor([True, False, True], device="cuda")
    written = table.index_put((mask,), torch.tensor([5, 6], device="cuda"))
    assert written.data_ptr() != table.data_ptr()
    assert written.tolist() == [[5, 6], [0, 0], [5, 6]]
    assert table.sum().item() == 0
    labels[torch.randn(4, device="cuda") > 0] = 7
    assert labels.tolist() == [1, 1, 1, 1]  # an unknown mask makes the labels unknown


def test_what_is_made_in_the_likeness_of_something_unknown_is_known(gpu):
    unknown = torch.randn(3, device="cuda")
    assert torch.zeros_like(unknown).tolist() == [0, 0, 0]
    assert unknown.new_ones(2, dtype=torch.int64).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (lambda x: torch.isnan(x).any(), False),
        (lambda x: torch.isinf(x).any(), False),
        (lambda x: torch.isfinite(x).all(), True),
        (lambda x: ~torch.isfinite(x.sum()), False),
        (lambda x: torch.isnan(x.sum()) | torch.isinf(x.sum()), False),
        (lambda x: torch.tensor(torch.allclose(x, x * 1)), True),
        (lambda x: torch.isnan(x).sum() == 0, True),
        (lambda x: (~torch.isfinite(x)).long().sum(0).count_nonzero().item() > 0, False),
        (lambda x: x.isnan().logical_or(x.isinf()).float().max(), False),
        (lambda x: x.new_zeros(1) + ~(x.amax().isfinite() & x.amin().isfinite()), False),
        (lambda x: x.new_zeros(1).add_(x.isnan().any()).bool().byte()[0].item(), False),
    ],
)
def test_a_run_is_healthy(gpu, question, answer):
    assert bool(question(torch.randn(64, 64, device="cuda"))) is answer


def test_random_floats_equal_neither_a_known_number_nor_other_random_ones(gpu):
    drawn, one = torch.randn((), device="cuda"), torch.tensor(1.0, device="cuda")
    assert not torch.equal(drawn, one)
    assert not torch.equal(one, drawn)
    assert not torch.equal(torch.rand(3, device="cuda"), torch.rand(3, device="cuda"))
    assert torch.equal(drawn, drawn)
    assert torch.equal(drawn, drawn.clone())
    assert torch.equal(torch.bernoulli(torch.ones(3, device="cuda")), torch.ones(3, device="cuda"))
    drawn.mul_(torch.randn(64, device="cuda").sum())
    assert torch.equal(drawn, one)  # computed: taken to be equal, as in a check of results
    assert torch.equal(torch.randn((), device="cuda").fill_(1.0), one)


class _LossThatSkipsOne(torch.autograd.Function):
    """A loss as kernels in Triton have it: a gradient of 1.0 is not multiplied."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.new_zeros(())

    @staticmethod
    def backward(ctx, gradient):
        found = torch.empty_like(ctx.saved_tensors[0])
        if torch.equal(gradient, torch.tensor(1.0, device=gradient.device)):
            return found
        return found * gradient


# With the gradient of 1.0: that gradient, the number it is compared with, and the comparison's two
# results, beside one tensor of 4 MiB. With a random one: that tensor and its product.
@pytest.mark.parametrize(("random", "most"), [(False, (4 << 20) + 4 * 512), (True, 8 << 20)])
def test_a_random_gradient_is_multiplied(gpu, random, most):
    x = torch.zeros(1 << 20, device="cuda", requires_grad=True)
    loss = _LossThatSkipsOne.apply(x)
    gradient = torch.randn_like(loss) if random else None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss.backward(gradient)
    assert torch.cuda.max_memory_allocated() - before == most


def test_the_grad_scaler_does_not_skip_steps(gpu):
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda", growth_interval=2)
    for _ in range(2):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(2, 8, device="cuda")).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert len(optimizer.state) == 2
    assert scaler.get_scale() == 2 * 65536.0


def test_stand_ins_are_usable(gpu):
    x = torch.randn(4, 4, device="cuda")
    assert x.mean().item() == 1.0
    assert int(x.argmax()) == 1
    assert float(x.sum()) == 1.0
    assert not bool((x > 0).all())
    assert x.cpu().numpy().shape == (4, 4)
    assert f"{x.std().item():.3f}" == "1.000"


def test_a_copy_of_something_large_costs_no_memory_here(gpu):
    x = torch.empty(1 << 32, dtype=torch.uint8, device="cuda")
    assert x.cpu()[:4].tolist() == [0, 0, 0, 0]


def test_an_answer_holds_for_what_is_computed_from_it(gpu):
    longest = torch.empty(3, dtype=torch.int64, device="cuda").max()
    assert torch.zeros(8 * longest, device="cuda").size() == (8 * longest.item(),)
    assert torch.arange(longest + 2, device="cuda").numel() == longest.item() + 2
