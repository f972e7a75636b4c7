"""cuDNN's recurrent layers: reserve and workspace, as recorded and as published."""

import pytest

torch = pytest.importorskip("torch", reason="the virtual card answers torch")

from nbmem.virtual.operators.recurrent.kernels import GRU, LSTM, RecurrentShape

TANH = 1


def shape(mode, *, rows, length, hidden, layers, directions=1, width=None):  # noqa: PLR0913 - what it is
    return RecurrentShape(
        rows=rows,
        steps=rows * length,
        hidden=hidden,
        width=width or hidden,
        layers=layers,
        directions=directions,
        mode=mode,
        dropout=0.0,
        item=4,
    )


def test_reserve_and_workspace_are_those_of_the_recordings():
    gru = shape(GRU, rows=64, length=200, hidden=512, layers=3, directions=2)
    assert (gru.reserve, gru.workspace) == (1_048_576_256, 443_810_560)
    lstm = shape(LSTM, rows=32, length=128, hidden=650, layers=2)
    assert lstm.reserve == 117_478_656
    assert lstm.workspace == 120_028_928 - 12_928  # what this is for is unknown


@pytest.mark.parametrize(("mode", "published"), [(LSTM, 736_000_000), (GRU, 864_000_000)])
def test_reserves_of_four_layers_are_the_published_ones(mode, published):
    # pytorch/pytorch#2895: a P100 with cuDNN 7, which kept nothing of the first states.
    four = shape(mode, rows=100, length=250, hidden=320, layers=4)
    assert 0 <= four.reserve - published - 256 <= 2 * 4 * four.slice


def test_a_plain_cell_keeps_less_than_one_with_gates_and_a_projection_more():
    one = {"rows": 4, "length": 10, "hidden": 32, "layers": 2}
    plain, lstm = shape(TANH, **one), shape(LSTM, **one)
    assert plain.reserve == 3 * plain.unit + 256
    assert shape(LSTM, **one, width=8).reserve > lstm.reserve > plain.reserve


def test_a_gru_takes_its_workspace_for_each_call_and_keeps_its_reserve_for_backward(gpu):
    model = torch.nn.GRU(64, 128, 2, bidirectional=True).cuda()
    x = torch.randn(50, 16, 64, device="cuda")
    sizes = shape(GRU, rows=16, length=50, hidden=128, layers=2, directions=2)
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    out, state = model(x)
    kept = out.nbytes + state.nbytes + sizes.reserve
    first = 4 * 16 * 128 * 4  # the states before the first step
    stats = torch.cuda.memory_stats()
    assert stats["requested_bytes.all.current"] - before == kept + first
    assert stats["requested_bytes.all.peak"] - before == kept + first + sizes.workspace


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

    def largest():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        model(x)
        return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before

    state = 132 * 2048 * 24
    assert largest() > state > largest()
    torch.manual_seed(3)
    assert largest() > state  # beside the old one
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    assert largest() > state > largest()


def test_an_input_that_is_not_contiguous_is_copied_for_each_pass(gpu):
    """Bytes of torch 2.13's own code on an H100 (tests/oracle); 144 is the input's size."""
    model = torch.nn.LSTM(2, 5, bidirectional=True).cuda()
    source = torch.ones(6, 3, 2, device="cuda", requires_grad=True).permute(1, 0, 2)
    memory = torch.cuda.memory
    memory._record_memory_history(max_entries=1000, context=None)
    model(source)[0].sum().backward()
    events = memory._snapshot()["device_traces"][0]
    memory._record_memory_history(enabled=None)
    forward = [240, 240, 144, 720, 240, 240, 8000, 4336]
    backward = [240, 240, 144, 720, 144, 240, 240, 8000, 144, 1440, 8000, 144]
    asked = [event["size"] for event in events if event["action"] == "alloc"]
    assert asked == [*forward, 4, 4, *backward]
