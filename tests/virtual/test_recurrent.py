"""Reserve and workspace of cuDNN's recurrent layers."""

import pytest
import torch

from nbmem.virtual.cards import CARDS
from nbmem.virtual.operators.recurrent.sizes import (
    GRU,
    LSTM,
    SMALL,
    STANDARD,
    STATIC,
    RecurrentShape,
)
from tests.virtual.allocation_history import requested_sizes

TANH = 1
BY_KEY = {card.key: card for card in CARDS}
H100 = BY_KEY["H100 80GB"]
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


def shape(mode, size, layers, directions=1, **more):
    """Return the shape of rows x steps x inputs x hidden."""
    rows, length, inputs, hidden = size
    more = {"width": hidden, "dropout": 0.0, "dtype": FP32, **more}
    given = {"rows": rows, "steps": rows * length, "inputs": inputs, "hidden": hidden}
    return RecurrentShape(**given, layers=layers, directions=directions, mode=mode, **more)


@pytest.mark.parametrize(
    ("made", "dtype", "dropout", "algorithm", "reserve", "workspace"),
    [
        ((GRU, (64, 200, 256, 512), 3, 2), FP32, 0.0, STANDARD, 1_048_576_256, 443_810_560),
        ((LSTM, (32, 128, 650, 650), 2, 1), FP32, 0.5, STANDARD, 117_478_656, 120_028_928),
        ((LSTM, (64, 200, 128, 256), 1, 1), FP32, 0.0, STANDARD, 65_536_256, 82_707_200),
        ((LSTM, (64, 200, 128, 256), 1, 1), FP16, 0.0, STATIC, 32_768_256, 150_340_352),
        ((LSTM, (8, 35, 650, 650), 2, 2), BF16, 0.5, STANDARD, 8_099_264, 73_313_952),
        ((LSTM, (1, 16, 64, 64), 2, 2), FP16, 0.5, SMALL, 45_824, 33_950_496),
        ((LSTM, (1, 16, 64, 64), 2, 2), BF16, 0.5, STANDARD, 45_824, 33_919_264),
        ((LSTM, (100, 28, 28, 128), 2, 2), FP32, 0.0, SMALL, 31_539_456, 80_932_128),
        ((LSTM, (20, 35, 200, 200), 2, 1), FP32, 0.2, STANDARD, 6_177_760, 23_577_632),
        ((GRU, (1, 16, 64, 64), 3, 2), FP32, 0.0, SMALL, 164_096, 51_243_808),
        ((GRU, (8, 35, 650, 650), 1, 1), BF16, 0.0, STANDARD, 2_184_256, 15_694_944),
        ((TANH, (64, 200, 128, 256), 2, 1), FP32, 0.0, SMALL, 39_321_856, 215_089_920),
        ((TANH, (32, 128, 256, 512), 2, 1), FP32, 0.0, STANDARD, 25_166_080, 56_230_400),
        ((TANH, (8, 35, 650, 650), 2, 1), FP32, 0.0, STANDARD, 2_184_256, 28_113_536),
    ],
)
def test_reserve_and_workspace_are_those_of_an_h100(  # noqa: PLR0913, PLR0917 - a row
    made, dtype, dropout, algorithm, reserve, workspace
):
    one = shape(*made, dtype=dtype, dropout=dropout)
    assert (one.algorithm(H100), one.reserve) == (algorithm, reserve)
    assert one.workspace(algorithm) == workspace


def test_an_lstm_that_is_evaluated_needs_no_cells():
    one = shape(LSTM, (10, 35, 200, 200), 2)
    assert one.workspace(STANDARD, training=False) == 21_177_568  # word_language_model on an H100


def test_the_algorithm_is_the_one_that_torch_asks_for():
    lstm = shape(LSTM, (16, 50, 128, 128), 1, dtype=FP16)
    assert (lstm.algorithm(H100), lstm.algorithm(H100, forward=False)) == (SMALL, SMALL)
    between = shape(LSTM, (16, 50, 100, 160), 1)
    assert (between.algorithm(H100), between.algorithm(H100, forward=False)) == (SMALL, STANDARD)
    wide = {"size": (16, 50, 128, 512), "layers": 1, "dtype": FP16}
    asked = {
        card: shape(LSTM, **wide).algorithm(BY_KEY[card]) for card in ("V100 32GB", "T4", "A10")
    }
    assert asked == {"V100 32GB": STATIC, "T4": STANDARD, "A10": STANDARD}
    assert shape(GRU, **wide).algorithm(H100) == STANDARD
    for more in ({"width": 64}, {"packed": True}):
        assert shape(LSTM, (16, 50, 128, 128), 1, **more).algorithm(H100) == STANDARD


@pytest.mark.parametrize(("mode", "published"), [(LSTM, 736_000_000), (GRU, 864_000_000)])
def test_reserves_of_four_layers_are_the_published_ones(mode, published):
    # pytorch/pytorch#2895: a P100 with cuDNN 7.
    assert shape(mode, (100, 250, 320, 320), 4).reserve == published + 256


def test_a_plain_cell_keeps_less_than_one_with_gates_and_a_projection_more():
    one = {"size": (4, 10, 32, 32), "layers": 2}
    plain, lstm = shape(TANH, **one), shape(LSTM, **one)
    assert plain.reserve == 3 * plain.unit + 256
    assert shape(LSTM, **one, width=8).reserve > lstm.reserve > plain.reserve


def test_a_gru_takes_its_workspace_for_each_call_and_keeps_its_reserve_for_backward(gpu):
    model = torch.nn.GRU(64, 128, 2, bidirectional=True).cuda()
    x = torch.randn(50, 16, 64, device="cuda")
    sizes = shape(GRU, (16, 50, 64, 128), 2, 2)
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    out, state = model(x)
    kept = out.nbytes + state.nbytes + sizes.reserve
    first = 4 * 16 * 128 * 4  # the states before the first step
    stats = torch.cuda.memory_stats()
    assert stats["requested_bytes.all.current"] - before == kept + first
    assert stats["requested_bytes.all.peak"] - before == kept + first + sizes.workspace(SMALL)


def test_a_packed_batch_says_its_sizes_on_the_cpu(gpu):
    sizes = torch.tensor([2, 1], device="cuda")
    rest = torch.zeros(1, 2, 4, device="cuda"), [torch.zeros(4, 4, device="cuda")] * 2
    with pytest.raises(RuntimeError, match="batch_sizes tensor should be on CPU, but got cuda:0"):
        torch.rnn_relu(
            torch.zeros(3, 4, device="cuda"),
            sizes,
            *rest,
            has_biases=False,
            num_layers=1,
            dropout=0.0,
            train=False,
            bidirectional=False,
        )


def test_dropout_between_layers_has_a_state_of_its_own_until_the_card_is_seeded(gpu):
    """Bytes of torch 2.13's own code on an H100 (tests/oracle): a seed, then the state."""
    model = torch.nn.LSTM(4, 4, 2, dropout=0.5).cuda()
    x = torch.ones(3, 2, 4, device="cuda")

    def states():
        return requested_sizes(lambda: model(x))[0].count(132 * 2048 * 24)

    assert (states(), states()) == (1, 0)
    torch.manual_seed(3)
    assert states() == 1
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    assert (states(), states()) == (1, 0)


def test_an_input_that_is_not_contiguous_is_copied_for_each_pass(gpu):
    """Bytes of torch 2.13's own code on an H100 (tests/oracle); 144 is the input's size."""
    model = torch.nn.LSTM(2, 5, bidirectional=True).cuda()
    source = torch.ones(6, 3, 2, device="cuda", requires_grad=True).permute(1, 0, 2)
    sizes = shape(LSTM, (6, 3, 2, 5), 1, 2)
    workspace = sizes.workspace(SMALL)
    forward = [240, 240, 144, 720, 240, 240, workspace, 3872]
    backward = [240, 240, 144, 720, 144, 240, 240, workspace, 144, 1440, workspace, 144]
    requested, _ = requested_sizes(lambda: model(source)[0].sum().backward())
    assert requested == [*forward, 4, 4, *backward]
