"""Phases from hook events of made-up training loops."""

from itertools import pairwise

import numpy as np
import pytest

from nbmem.capture.record.hook_events import HookEvent
from nbmem.capture.record.phase_builder import PhaseBuilder
from nbmem.capture.record.unhooked_intervals import ObservedAllocations, UnhookedIntervals
from nbmem.core.session.events import Action, Events
from nbmem.core.session.session import CounterSamples
from tests.capture.phase_texts import phase_text, steps

MODEL, OTHER, ADAM, SGD = 1, 2, 3, 4


class Loop:
    """Record a run: `take` allocates, other methods are hook events."""

    def __init__(self):
        self.sizes, self.births, self.hook_events, self.positions = [], [], [], [0]
        self.weights, self.actions, self.addrs = [], [], []

    def take(self, size=1024, *, is_input=False, is_weight=False, dies=False):
        if is_input:
            self.births.append(len(self.sizes))
        if is_weight:
            self.weights.append(len(self.sizes))
        addr = len(self.sizes)
        self.event(Action.ALLOC, addr, size)
        return self.event(Action.FREE_REQUESTED, addr, size) if dies else self

    def event(self, action, addr, size):
        self.actions.append(action)
        self.addrs.append(addr)
        self.sizes.append(size)
        return self

    def hook_event(self, kind, *, begins, key=0, closure=False):
        self.positions.append(len(self.sizes))
        self.hook_events.append(HookEvent(kind, begins, len(self.positions) - 1, key, closure))

    def around(self, kind, count=1, key=0, size=1024):
        self.hook_event(kind, begins=True, key=key)
        for _ in range(count):
            self.take(size)
        self.hook_event(kind, begins=False, key=key)
        return self

    def forward(self, key=MODEL, kind="forward"):
        self.around(kind, 3, key)
        return self.take()  # the loss

    def backward(self):
        self.take(4)  # the ones that backward() begins with
        return self.around("backward", 2)

    def step(self, key=ADAM):
        return self.around("optimizer", 1, key)

    def phases(self):
        self.positions.append(len(self.sizes))
        rows = zip(self.actions, self.addrs, self.sizes, strict=True)
        events = Events.from_rows((*row, 0, at * 10, -1) for at, row in enumerate(rows))
        counter_samples = CounterSamples.from_rows((at * 10, *[at] * 5) for at in self.positions)
        births = ObservedAllocations(
            inputs=np.array(self.births, int), weights=np.array(self.weights, int)
        )
        return PhaseBuilder(events, counter_samples, UnhookedIntervals(events, births)).build(
            self.hook_events
        )


def assert_in_order(phases):
    flat = [p for p in phases if p.parent is None]
    assert all(p.first <= p.last and p.t0_ns <= p.t1_ns for p in phases)
    assert all(a.last <= b.first for a, b in pairwise(flat))


def test_the_plain_loop():
    loop = Loop().take(9).take(9)
    for _ in range(2):
        loop.take(is_input=True).take()  # x, then y
        loop.forward().backward().step().around("zero_grad", 0)
    phases = loop.phases()
    assert phase_text(phases) == steps("input forward backward optimizer zero_grad", "load")
    assert_in_order(phases)
    load, first_input, forward, backward = phases[:4]
    assert (load.first, load.last) == (0, 2)
    assert (first_input.first, first_input.last) == (2, 4)
    assert (forward.first, forward.last) == (4, 8)  # with its loss, without backward's ones
    assert (backward.first, backward.last) == (8, 11)


def test_what_is_only_let_go_of_before_a_backward_is_no_forward():
    loop = Loop().take(9)
    for _ in range(2):
        loop.take(is_input=True).forward().around("zero_grad", 0)
        loop.event(Action.FREE_REQUESTED, 0, 9)  # the loss of the step before
        loop.backward().step()
    assert phase_text(loop.phases()) == steps("input forward zero_grad backward optimizer", "load")


def test_zero_grad_first_in_the_loop():
    loop = Loop().take(9)
    for _ in range(2):
        loop.take(is_input=True).around("zero_grad", 0).forward().backward().step()
    assert phase_text(loop.phases()) == steps("input zero_grad forward backward optimizer", "load")


def test_zero_grad_between_forward_and_backward_keeps_the_loss_in_forward():
    loop = Loop().take(is_input=True)
    loop.around("forward", 3, MODEL).around("zero_grad", 0).take().backward().step()
    phases = loop.phases()
    assert phase_text(phases) == "input0 forward0 zero_grad0 forward0 backward0 optimizer0"
    assert_in_order(phases)


def test_clipping_belongs_to_the_optimizer_and_the_scalers_update_too():
    loop = Loop().take(is_input=True).forward().backward()
    loop.take().take().step().take().around("zero_grad", 0)
    phases = {p.name: p for p in loop.phases()}
    assert phases["optimizer"].last - phases["optimizer"].first == 4


def test_accumulation_is_one_step():
    loop = Loop()
    for _ in range(2):
        for _ in range(3):
            loop.take(is_input=True).forward().backward()
        loop.step().around("zero_grad", 0)
    assert phase_text(loop.phases()) == (
        "input0 forward0 backward0 " * 3
        + "optimizer0 zero_grad0 "
        + "input1 forward1 backward1 " * 3
        + "optimizer1 zero_grad1"
    )


def test_two_optimizers_make_one_step():
    loop = Loop()
    for _ in range(2):
        loop.take(is_input=True).forward(MODEL).backward().step(ADAM)
        loop.forward(OTHER).backward().step(SGD)
    assert [p.step for p in loop.phases() if p.name == "optimizer"] == [0, 0, 1, 1]


def test_a_step_that_runs_the_whole_pass_in_its_closure():
    loop = Loop().take(9)
    for _ in range(2):  # Lightning's
        loop.take(is_input=True).hook_event("optimizer", begins=True, key=ADAM, closure=True)
        loop.forward().around("zero_grad", 0).backward()
        loop.take().hook_event("optimizer", begins=False, key=ADAM)
    phases = loop.phases()
    assert phase_text(phases) == steps("input forward zero_grad backward optimizer", "load")
    assert_in_order(phases)
    assert (phases[5].first, phases[5].last) == (9, 10)


def test_a_step_that_calls_its_closure_twice_is_one_step():
    loop = Loop().take(9)
    for _ in range(2):  # LBFGS with a search along its line
        loop.hook_event("optimizer", begins=True, key=ADAM, closure=True)
        for _ in range(2):
            loop.take().around("zero_grad", 0).forward().backward()
        loop.hook_event("optimizer", begins=False, key=ADAM)
    names = "optimizer zero_grad forward backward " * 2 + "optimizer"
    assert phase_text(loop.phases()).removeprefix("load ") == steps(names)


def test_evaluation_behind_every_step_belongs_to_it():
    loop = Loop()
    for _ in range(2):
        loop.take(is_input=True).forward().backward().step().around("zero_grad", 0)
        for _ in range(2):
            loop.take(is_input=True).forward(kind="inference")
    assert phase_text(loop.phases()) == steps(
        "input forward backward optimizer zero_grad input inference input inference"
    )


def test_a_teacher_that_sees_the_batch_first_begins_its_step():
    loop = Loop().take()
    for _ in range(2):
        loop.take(is_input=True).forward(OTHER, "inference").forward()
        loop.backward().step().around("zero_grad", 0)
    loop.take(is_input=True).forward(MODEL, "inference")
    loop.take(is_input=True).forward(MODEL, "inference")  # an evaluation
    loop.take(is_input=True).forward().backward().step()
    step = ["input", "inference", "forward", "backward", "optimizer", "zero_grad"]
    phases = [(p.name, p.step) for p in loop.phases() if p.name != "load"]
    assert phases[:12] == [(name, n) for n in (0, 1) for name in step]
    assert phases[12:16] == [(name, None) for name in ("input", "inference") * 2]
    assert phases[16:] == [(name, 2) for name in ("input", "forward", "backward", "optimizer")]


def test_a_loss_of_what_was_only_looked_at_begins_its_step():
    """The temperature of SAC: actions are drawn without a graph, and no module is called for it."""
    loop = Loop().take()
    for _ in range(3):
        loop.take(is_input=True).forward(OTHER, "inference").around("zero_grad", 0)
        loop.hook_event("backward", begins=True)
        loop.hook_event("backward", begins=False)
        loop.step(SGD)
        loop.forward().around("zero_grad", 0).backward().step()
    step = "input inference zero_grad backward optimizer forward zero_grad backward optimizer"
    assert phase_text(loop.phases()) == steps(step, "load", count=3)


def test_actions_that_are_drawn_before_each_batch_begin_its_step():
    loop = Loop().take()
    for _ in range(3):
        loop.take(is_input=True).forward(MODEL, "inference")
        loop.take(is_input=True).forward().backward().step().around("zero_grad", 0)
    step = "input inference input forward backward optimizer zero_grad"
    assert phase_text(loop.phases()) == steps(step, "load", count=3)


def test_features_that_are_cached_for_a_contrastive_loss_begin_its_step():
    """open_clip's --accum-freq: all parts of the batch without a graph, then each with one."""
    loop = Loop().take()
    for _ in range(3):
        for _ in range(3):
            loop.take(is_input=True).forward(MODEL, "inference")
        loop.around("zero_grad", 0)
        for _ in range(3):
            loop.forward().backward()
        loop.step()
    step = "input inference " * 3 + "zero_grad " + "forward backward " * 3 + "optimizer"
    assert phase_text(loop.phases()) == steps(step, "load", count=3)


def test_what_is_only_let_go_of_before_a_forward_is_no_input():
    loop = Loop().take().take(is_input=True).forward().backward().step()
    loop.event(Action.FREE_REQUESTED, 0, 1024)  # a local of the step that has returned
    loop.forward().backward().step()
    names = [phase.name for phase in loop.phases()]
    assert names == ["load", "input", *["forward", "backward", "optimizer"] * 2]


def test_inference_alone_counts_its_calls():
    loop = Loop().take(9)
    for _ in range(3):
        loop.take(is_input=True).forward(kind="inference")
    assert phase_text(loop.phases()) == steps("input inference", "load", count=3)


def test_a_criterion_module_goes_on_with_the_forward():
    loop = Loop().take(is_input=True)
    loop.around("forward", 3, MODEL)
    loop.hook_event("forward", begins=False, key=OTHER)  # TurnLog tells only that it returned
    loop.backward()
    assert phase_text(loop.phases()) == "input0 forward0 backward0"


def test_a_step_that_raised_ends_where_the_next_phase_begins():
    loop = Loop().take(is_input=True).forward().backward()
    loop.hook_event("optimizer", begins=True, key=ADAM)
    loop.take().take(is_input=True).forward()
    phases = loop.phases()
    assert phase_text(phases).startswith("input0 forward0 backward0 optimizer0 ")
    assert_in_order(phases)


def test_recompute_lies_inside_its_backward():
    loop = Loop().take(is_input=True).forward()
    loop.hook_event("backward", begins=True)
    loop.around("recompute", 2)
    loop.hook_event("backward", begins=False)
    phases = loop.phases()
    assert phase_text(phases) == "input0 forward0 backward0 recompute0"
    assert phases[-1].parent == 2


def places(phases, name):
    return [(p.first, p.last) for p in phases if p.name == name]


def test_a_model_that_is_made_after_its_data_is_loaded():
    loop = Loop().take(9, is_input=True).take(7, is_weight=True).take(8, is_weight=True)
    for _ in range(2):
        loop.around("zero_grad", 0).forward().backward().step()
    phases = loop.phases()
    assert phase_text(phases) == steps("zero_grad forward backward optimizer", "load")
    assert places(phases, "load") == [(0, 3)]


@pytest.mark.parametrize(("more", "rest"), [(0, ""), (1, "forward ")])
def test_a_batch_that_is_fetched_behind_the_forward_is_an_input(more, rest):
    loop = Loop().take(is_input=True)
    for _ in range(2):  # nanoGPT's
        loop.forward().take(is_input=True).take(7, dies=True).take(is_input=True)
        for _ in range(more):
            loop.take()  # a second loss
        loop.backward().step().around("zero_grad", 0)
    phases = loop.phases()
    once = f"forward input {rest}backward optimizer zero_grad"
    assert phase_text(phases) == steps(once, "input0")
    assert_in_order(phases)
    assert places(phases, "input")[1] == (5, 9)
    assert places(phases, "backward")[0] == (9 + more, 12 + more)


def test_zero_grad_before_the_loop_and_at_its_end_ends_each_step():
    loop = Loop().take(9).around("zero_grad", 0)
    for _ in range(2):
        loop.take(is_input=True).forward().backward().step().around("zero_grad", 0)
    assert phase_text(loop.phases()) == steps(
        "input forward backward optimizer zero_grad", "load zero_grad0"
    )


def test_a_sample_that_is_drawn_behind_a_step_belongs_to_it():
    loop = Loop().take(9)
    for _ in range(2):  # DCGAN's
        loop.take(is_input=True).around("zero_grad", 0).forward().backward().step()
        loop.take(is_input=True).forward()
    assert phase_text(loop.phases()) == steps(
        "input zero_grad forward backward optimizer input forward", "load"
    )


def test_zero_grad_before_a_loop_that_calls_it_behind_its_forward_is_no_head():
    loop = Loop().take(9).around("zero_grad", 0).take(is_input=True).forward(kind="inference")
    for _ in range(2):  # Lightning's: its trial of the evaluation calls it, too
        loop.take(is_input=True).forward().around("zero_grad", 0).backward().step()
    assert phase_text(loop.phases()) == steps(
        "input forward zero_grad backward optimizer", "load zero_grad0 input0 inference0"
    )


def test_optimizers_of_models_that_are_made_in_turn_step_once_each():
    loop = Loop()
    for key in (1, 2):
        loop.take(70, is_weight=True).take(is_input=True).forward(key=key).backward().step(key=key)
    assert phase_text(loop.phases()) == (
        "load input0 forward0 backward0 optimizer0 load input1 forward1 backward1 optimizer1"
    )


def test_an_accuracy_with_gradients_on_belongs_to_the_step_before_it():
    loop = Loop().take(9)
    for _ in range(2):
        loop.take(is_input=True).around("zero_grad", 0).forward().backward().step().forward()
        loop.take(is_input=True).forward().take(is_input=True).forward()  # an evaluation, too
    assert phase_text(loop.phases()) == steps(
        "input zero_grad forward backward optimizer forward input forward input forward", "load"
    )


def test_updates_of_an_inner_loop_end_no_step():
    loop = Loop().take(70, is_weight=True).take(80, is_weight=True)
    for _ in range(2):  # MAML's: one optimizer, and fast weights by hand
        loop.around("zero_grad", 0)
        for _ in range(2):
            loop.take(is_input=True).forward().hook_event("backward", begins=True)
            loop.take(70).take(80).hook_event("backward", begins=False)
            loop.take(70).take(80)
        loop.take(is_input=True).forward().backward().step()
    once = "zero_grad " + "input forward backward optimizer " * 3
    assert phase_text(loop.phases()) == steps(once, "load")


def test_zero_grad_behind_the_last_step_but_before_an_evaluation_ends_the_step():
    loop = Loop().take(9).around("zero_grad", 0)
    for _ in range(2):  # transformers.Trainer's
        loop.take(is_input=True).forward().backward().step().around("zero_grad", 0)
    loop.take(is_input=True).forward(kind="inference")
    both = steps("input forward backward optimizer zero_grad", "load zero_grad0")
    assert phase_text(loop.phases()) == f"{both} input inference"


def test_what_looks_between_epochs_and_behind_the_loop_has_no_step():
    loop, epoch = Loop().take(9), ""
    for step in range(4):
        loop.take(is_input=True).forward().backward().step()
        epoch += f"input{step} forward{step} backward{step} optimizer{step} "
        if step == 1:
            loop.take(is_input=True).forward(kind="inference").around("zero_grad", 0)
            loop.forward(kind="inference")
            epoch += "input inference zero_grad inference "
    loop.forward(kind="inference").take(is_input=True).forward(kind="inference")
    assert phase_text(loop.phases()) == "load " + epoch + "inference input inference"


def test_an_update_by_hand_is_an_optimizer():
    loop = Loop().take(70, is_weight=True).take(80, is_weight=True)
    for _ in range(2):
        loop.take(is_input=True).forward()
        loop.take(4).hook_event("backward", begins=True)
        loop.take(70).take(80).hook_event("backward", begins=False)
        loop.take(70, dies=True).take(80, dies=True)  # lr * p.grad
    phases = loop.phases()
    assert phase_text(phases) == steps("input forward backward optimizer", "load")
    assert_in_order(phases)
    assert places(phases, "optimizer") == [(10, 14), (22, 26)]


def test_the_update_of_an_average_belongs_to_the_optimizer_before_it():
    loop = Loop().take(70, is_weight=True).take(80, is_weight=True)
    for _ in range(2):
        loop.take(60).take(is_input=True).forward()
        loop.hook_event("backward", begins=True)
        loop.take(70).take(80).hook_event("backward", begins=False)
        loop.step().take(70, dies=True).take(80, dies=True)
    phases = loop.phases()
    assert phase_text(phases) == steps("input forward backward optimizer", "load")
    assert places(phases, "optimizer")[0] == (10, 15)
    assert places(phases, "input")[1] == (15, 17)  # with what it was made of


def test_what_is_as_large_as_no_gradient_is_no_update():
    loop = Loop().take(70, is_weight=True).take(80, is_weight=True)
    for _ in range(2):
        loop.take(90, is_input=True).forward()
        loop.take(4).hook_event("backward", begins=True)
        loop.take(70).take(80).hook_event("backward", begins=False)
        loop.take(4, dies=True)  # an accuracy
    assert phase_text(loop.phases()) == steps("input forward backward", "load")


def test_a_loop_without_modules_has_forwards():
    loop = Loop().take(9).take(70).take(80)
    for first in (True, False):
        loop.take(71).take(72)
        if first:
            loop.take(8_519_680)  # cuBLAS's workspace
        loop.take(73).take(4)
        loop.hook_event("backward", begins=True)
        if first:
            loop.take(70).take(80)
        loop.hook_event("backward", begins=False)
        loop.take(70, dies=True).take(80, dies=True)
    phases = loop.phases()
    assert phase_text(phases) == steps("forward backward optimizer", "load")
    assert_in_order(phases)
    assert (places(phases, "load"), places(phases, "forward")[0]) == ([(0, 3)], (3, 7))


def test_a_second_model_is_loaded_and_its_steps_go_on_counting():
    loop = Loop().take(9, is_weight=True)
    for model, optimizer in ((MODEL, ADAM), (OTHER, SGD)):
        for _ in range(2):
            loop.take(is_input=True).forward(model).backward().step(optimizer)
        loop.take(9, is_weight=True)
    assert phase_text(loop.phases()) == (
        "load input0 forward0 backward0 optimizer0 input1 forward1 backward1 optimizer1 "
        "load input2 forward2 backward2 optimizer2 input3 forward3 backward3 optimizer3"
    )


def test_calls_of_one_pass_that_follow_each_other_are_one_forward():
    loop = Loop()
    for _ in range(2):
        loop.take(is_input=True)
        for _ in range(3):  # an RNN that is stepped by hand
            loop.forward()
        loop.backward().step()
    assert phase_text(loop.phases()) == steps("input forward backward optimizer")


def test_a_step_in_a_hook_of_the_engines_lies_inside_its_backward():
    loop = Loop()
    for _ in range(2):
        loop.take(is_input=True).forward().hook_event("backward", begins=True)
        loop.step().around("zero_grad", 0).take(5).hook_event("backward", begins=False)
    phases = loop.phases()
    assert phase_text([p for p in phases if p.parent is None]) == steps("input forward backward")
    inner = [(p.name, p.parent, p.step) for p in phases if p.parent is not None]
    assert inner == [
        ("optimizer", 2, 0), ("zero_grad", 2, 0), ("optimizer", 5, 1), ("zero_grad", 5, 1)
    ]  # fmt: skip


def test_the_next_batch_is_not_a_part_of_an_evaluation():
    loop = Loop()
    for _ in range(2):
        loop.take(is_input=True).around("zero_grad", 0).forward().backward().step()
        loop.take(is_input=True).forward(kind="inference")
    assert phase_text(loop.phases()) == steps(
        "input zero_grad forward backward optimizer input inference"
    )


def test_a_cell_without_a_loop_is_load():
    assert phase_text(Loop().take().take().phases()) == "load"


def test_a_cell_without_memory_has_no_phases():
    assert Loop().phases() == []
