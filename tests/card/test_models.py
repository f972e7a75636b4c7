"""The part `models`: a training step, in each way the card is asked for."""

import itertools

import torch

from nbmem import virtual
from tests.card import models, workspaces
from tests.oracle.zoo import Program


def small():
    """Make a small convolution network and two labelled images."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    return Program(net, (torch.rand(2, 3, 8, 8), torch.arange(2)), models.loss)


def test_a_step_is_recorded_with_its_peaks_in_every_training_mode():
    with virtual.activated("H100"):
        workspaces.warm_up_libraries()
        found = {way: models.record_training_step(torch, small, way) for way in models.WAYS}
        again = models.record_training_step(torch, small, models.PLAIN)
    plain = found[models.PLAIN]
    assert plain == again
    allocated, reserved = plain["peaks"]
    assert 0 < allocated < reserved
    half = found[models.Way("float16", last=False)]
    assert len(half["sizes"]) > len(plain["sizes"])  # autocast's copies


def test_the_images_and_the_network_are_turned_to_channels_last():
    program = models._channels_last(torch, small)
    images, labels = program.batch
    turned = (program.model[0].weight, images)
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in turned)
    assert labels.tolist() == [0, 1]


def test_what_a_model_refuses_is_its_finding():
    def wrong():
        return small()._replace(loss=lambda model, batch: model(batch[1]))

    with virtual.activated("H100"):
        assert "Error: " in models.record_training_step(torch, wrong, models.PLAIN)


def test_the_usual_convolutions_come_first_and_no_name_is_there_twice():
    with virtual.activated("H100"):
        names = [name for name, _ in itertools.islice(workspaces.cases(), 3000)]
    assert len(set(names)) == len(names)
    assert names[: len(workspaces.USUAL) // 2] == [
        str(one) for one in workspaces.USUAL[: len(workspaces.USUAL) // 2]
    ]
    assert any(name.startswith("GRU float16") for name in names)
