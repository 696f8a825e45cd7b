# ruff: noqa: F403, F405
"""The copy task as it was written for the edition of 2022, against the names of this one.

Code that readers have: it must run here with three lines changed, those that the Afterword names.
"""

import torch
from torch.optim.lr_scheduler import LambdaLR

from the_annotated_transformer import *


class DummyOptimizer(torch.optim.Optimizer):
    def __init__(self):
        self.param_groups = [{"lr": 0}]

    def step(self):
        raise AssertionError("nothing is learnt from an evaluation")

    zero_grad = step


class DummyScheduler:
    step = DummyOptimizer.step


def test_the_copy_task_of_2022_runs_with_three_lines_changed():
    V, losses = 11, []
    torch.manual_seed(0)
    criterion = LabelSmoothing(size=V, padding_idx=PAD, smoothing=0.0)  # changed
    model = make_model(V, V, N=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5, betas=(0.9, 0.98), eps=1e-9)
    lr_scheduler = LambdaLR(
        optimizer=optimizer,
        lr_lambda=lambda step: rate(
            step, model_size=model.src_embed[0].d_model, factor=1.0, warmup=400
        ),
    )
    for _ in range(2):
        model.train()
        loss, state = run_epoch(
            data_gen(V, 8, 2),
            model,
            SimpleLossCompute(model.generator, criterion),
            optimizer,
            lr_scheduler,
            mode="train",
        )
        assert state.step == 2
        model.eval()
        judged, _ = run_epoch(
            data_gen(V, 8, 1),
            model,
            SimpleLossCompute(model.generator, criterion),
            DummyOptimizer(),
            DummyScheduler(),
            mode="eval",
        )
        losses += [float(loss), float(judged)]
    assert all(0 < loss < 5 for loss in losses) and losses[-1] < losses[0]
    model.eval()
    src = torch.LongTensor([[4, 5, 6, 7, 8, 9, 10, 4, 5, 6]])  # changed
    src_mask = torch.ones(1, 1, src.shape[1])
    written = greedy_decode(model, src, src_mask, max_len=12, start_symbol=START)  # changed
    assert written[0, 0] == START and written.size(1) <= 12
