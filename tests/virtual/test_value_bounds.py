"""Bounds of value-dependent sizes, as the program states them."""

import torch

CARD = "cuda"


def sample_boxes(labels, size, share):
    """Sample boxes for training, as detection models do."""
    positive = torch.where(labels >= 1)[0]
    negative = torch.where(labels == 0)[0]
    wanted = min(positive.numel(), int(size * share))
    others = min(negative.numel(), size - wanted)
    chosen = positive[torch.randperm(positive.numel(), device=CARD)[:wanted]]
    rest = negative[torch.randperm(negative.numel(), device=CARD)[:others]]
    first = torch.zeros_like(labels, dtype=torch.uint8)
    second = torch.zeros_like(labels, dtype=torch.uint8)
    first[chosen] = 1
    second[rest] = 1
    return first, second


def test_a_sampler_takes_no_more_than_it_says(gpu):
    scores = torch.rand(1002, device=CARD)
    pairs = [sample_boxes((scores > 0.5).long(), 512, 0.25) for _ in range(2)]
    for first, second in pairs:
        assert torch.where(first | second)[0].numel() == 512
    both = torch.where(torch.cat([first for first, _ in pairs]))[0]
    assert both.numel() == 2 * 128
    boxes = torch.rand(1002, 4, device=CARD)
    assert boxes[torch.where(pairs[0][0])[0]].size() == (128, 4)


def test_a_row_that_is_set_counts_with_all_its_columns(gpu):
    rows = torch.randperm(100, device=CARD)[:3]
    mask = torch.zeros(100, 7, dtype=torch.bool, device=CARD)
    mask[rows] = True
    assert mask.nonzero().size() == (21, 2)
    assert (mask & (torch.rand(100, 7, device=CARD) > 0.5)).nonzero().size() == (21, 2)
    assert not gpu.notes


def test_what_may_be_set_anywhere_has_no_bound(gpu):
    mask = torch.zeros(100, dtype=torch.bool, device=CARD)
    mask[torch.randperm(100, device=CARD)[:3]] = True
    mask |= torch.rand(100, device=CARD) > 0.5
    assert mask.nonzero().size() == (100, 1)
    assert gpu.notes
    other = torch.zeros(100, dtype=torch.bool, device=CARD)
    other[torch.randperm(100, device=CARD)[:3]] = True
    other.logical_not_()
    assert other.nonzero().size() == (100, 1)


def test_a_mask_of_bytes_fills_as_on_a_card(gpu):
    scores, mask = torch.rand(4, 4, device=CARD), torch.ones(4, 4, device=CARD).byte()
    assert scores.masked_fill(mask, 0.0).size() == (4, 4)
    assert scores.masked_fill_(mask, 0.0) is scores


def test_a_prediction_is_one_of_the_classes(gpu):
    logits = torch.randn(200, 4, device="cuda")
    predicted = logits.argmax(1)
    assert predicted.unique().numel() == 4
    assert predicted.view(20, 10)[3:].clone().to(torch.int32).unique().numel() == 4
    assert logits.topk(2).indices.unique().numel() == 4
    assert logits.max(dim=1).indices.bincount().numel() == 4
    assert torch.cat([predicted, predicted + 1]).unique().numel() == 400  # nobody knows the sum's
    assert torch.cat([predicted, predicted]).unique().numel() == 4
    assert (logits > 0).unique().numel() == 2


def test_integers_drawn_are_below_what_was_asked_for(gpu):
    drawn = torch.randint(7, (100_000, 4), device="cuda")
    assert drawn.unique().numel() == 7
    assert drawn.flatten().bincount().numel() == 7
    assert torch.randint(-3, 4, (1000,), device="cuda").unique().numel() == 1000
    drawn.add_(1)
    assert drawn.unique().numel() == 400_000


def test_integers_that_are_written_piece_by_piece_are_known(gpu):
    positions = torch.empty(5, dtype=torch.int64, device="cuda")
    positions[0] = 7
    positions[1:] = torch.arange(4, device="cuda")
    assert positions.tolist() == [7, 0, 1, 2, 3]


def test_the_largest_of_many_integers_is_what_came_from_the_cpu(gpu):
    edges = torch.stack([torch.arange(200_000) % 1000, torch.arange(200_000) % 40])
    there = edges.to(CARD)
    assert int(there.max()) == 999
    assert int(there[0].max().item()) + 1 == 1000
    assert there.amax().tolist() == 999
    values = torch.ones(200_000, device=CARD)
    assert torch.sparse_coo_tensor(there, values).size() == (1000, 1000)  # a bound of each row
    assert torch.bincount(there[1]).size() == (1000,)
    assert int((edges - 1).to(CARD).max()) == 1  # one is negative: nothing is said
    pairs = torch.cartesian_prod(torch.arange(900, device=CARD), torch.arange(300, device=CARD))
    assert int(pairs.max()) == 899
    assert int(torch.randint(0, 70, (400_000,), device=CARD).max(0).values) == 69


def test_the_largest_of_few_is_known_exactly(gpu):
    few = torch.tensor([[3, 5, 2], [9, 0, 1]], device=CARD)
    assert few.max(dim=1).values.tolist() == [5, 9]
    assert int(few[0].max()) == 5


def test_what_is_chosen_of_integers_is_none_that_was_not_there(gpu):
    graph_of = torch.arange(32, device=CARD).repeat_interleave(20)  # as torch_geometric's pooling
    kept = torch.rand(640, device=CARD).topk(320).indices
    for chosen in (graph_of[kept], graph_of.index_select(0, kept), graph_of.gather(0, kept)):
        assert int(chosen.max()) + 1 == 32
    assert int(graph_of[torch.rand(640, device=CARD) > 0.5].max()) == 31
    assert int(graph_of.masked_select(torch.rand(640, device=CARD) > 0.5).max()) == 31
    put, poured = (torch.zeros(640, dtype=torch.int64, device=CARD) for _ in range(2))
    put[kept] = graph_of[kept]
    poured.scatter_(0, kept, graph_of[kept])
    assert int(put.max()) == int(poured.max()) == 31
    every = torch.rand(640, device=CARD).argsort()
    assert int(torch.arange(640, device=CARD).scatter_(0, every, graph_of[every]).max()) == 31
    put.index_put_((kept,), graph_of[kept], accumulate=True)
    assert int(put.max()) == 1  # a sum of any of them


def test_marks_of_experts_add_up_to_the_tokens_that_were_sent(gpu):
    chosen = torch.rand(256, 8, device=CARD).topk(2, dim=1).indices
    gates = torch.zeros(256, 8, device=CARD).scatter(1, chosen, 1)
    counts = gates.long().sum(0).tolist()  # as granite's and jetmoe's routers do
    assert counts == [64] * 8
    assert len(torch.rand(512, 4, device=CARD).split(counts)) == 8
    assert torch.zeros(4096, 64, device=CARD).nonzero().size() == (0, 2)
    sent = torch.zeros(4096, 64, device=CARD)
    sent.add_(1)
    assert sent.nonzero().size() == (4096 * 64, 2)


def test_a_bound_of_floats_is_none_once_they_are_known_and_others(gpu):
    few = torch.zeros(4, device=CARD)
    few.add_(5)
    many = torch.cat([few, torch.zeros(100_000, device=CARD)]).long()
    assert int(many.max()) != 0


def test_a_sum_along_a_dimension_is_bounded_by_it(gpu):
    chosen = (torch.randn(2, 64, 4, device="cuda") > 0).int()
    assert chosen.sum(dim=1).max().item() == 64
    assert chosen.sum(dim=(0, 1)).max().item() == 128
