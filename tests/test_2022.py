"""Calls that code of 2022 makes, by name and keyword: they run here with the changes that the
Afterword names.

The program is our own. It trains the copy task as readers' programs do, with an optimizer that does
nothing where nothing is learnt, masks of ones, and everything found by `import *`.
"""

from types import SimpleNamespace

import torch

import the_annotated_transformer as at

NAMES = {}
exec("from the_annotated_transformer import *", NAMES)
OLD = SimpleNamespace(**{name: NAMES[name] for name in NAMES if not name.startswith("__")})
SIZE = 12


def never() -> None:
    raise AssertionError("an evaluation learns nothing")


def passes_over_the_data(model, criterion, optimizer, schedule):
    """Losses of three rounds, each of a training and an evaluation."""
    idle = SimpleNamespace(step=never, zero_grad=never, param_groups=[{"lr": 0}])
    loss_compute = OLD.SimpleLossCompute(model.generator, criterion)
    for _ in range(3):
        train = OLD.data_gen(SIZE, 6, 3)
        val = OLD.data_gen(SIZE, 6, 1)
        trained, state = OLD.run_epoch(
            train, model, loss_compute, optimizer, schedule, mode="train", accum_iter=1
        )
        assert (state.step, state.samples) == (3, 18)
        judged, _ = OLD.run_epoch(val, model, loss_compute, idle, idle, mode="eval")
        yield float(trained), float(judged)


def test_a_program_written_for_2022_runs():
    torch.manual_seed(3)
    model = OLD.make_model(SIZE, SIZE, N=1, d_model=32, d_ff=64, h=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3, betas=(0.9, 0.98), eps=1e-9)
    width = model.src_embed[0].d_model
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: OLD.rate(n, model_size=width, factor=1.0, warmup=50)
    )
    criterion = OLD.LabelSmoothing(size=SIZE, padding_idx=OLD.PAD, smoothing=0.1)
    losses = torch.tensor([*passes_over_the_data(model, criterion, optimizer, schedule)])
    assert losses.isfinite().all()
    assert losses[-1].sum() < losses[0].sum()
    src = torch.tensor([[4, 9, 5, 8, 6, 7]])
    model.eval()
    written = OLD.greedy_decode(model, src, torch.ones(1, 1, 6), max_len=8, start_symbol=OLD.START)
    assert written.size(1) <= 8
    assert written[0, 0] == OLD.START
    length = written.size(1) - 1  # of the last call
    assert model.decoder.layers[0].self_attn.attn.shape == (1, 2, length, length)
    assert model.decoder.layers[0].src_attn.attn.shape == (1, 2, length, 6)


def test_import_star_hands_out_what_all_lists():
    assert set(vars(OLD)) == set(at.__all__)
    assert {"make_model", "Batch", "START", "ATTENTION", "torch", "nn"} <= set(at.__all__)
    assert not {"os", "json", "alt", "main", "sample", "score", "table"} & set(at.__all__)
