"""The recipe computes what it always computed: losses of its first fifty updates.

They were recorded from commit 7b5a3ab, in fp32, by the fast forms. Other numbers are right only
after a change of what the recipe computes: vocabulary, first weights, batches, model, loss,
schedule or optimizer.
"""

import functools
import json

import pytest
import torch
from conftest import PROJECT

import the_annotated_transformer as at

SIZES = {"N": 2, "d_model": 32, "d_ff": 64, "h": 2, "dropout": 0.0}
GOLDEN = json.loads((PROJECT / "tests" / "golden_losses.json").read_text())["losses"]


@pytest.fixture
def training() -> at.Training:
    config = at.Config(data="builtin", pieces=300, batch_tokens=512, epochs=32, **SIZES)
    return at.Training(config, at.Worker(0, 1, torch.device("cpu"), None))


def first_batches(training: at.Training) -> list[at.Batch]:
    """One batch for each of the first fifty updates."""
    updates = training.updates_of_pass(0)[:50]
    return [at.share_of(training.train, numbers, training.worker) for [numbers] in updates]


def test_the_fast_forms_give_the_golden_losses(training):
    training.loss_model.train()
    losses = []
    for batch in first_batches(training):
        step = at.train_step(training.loss_model, [batch], training.optimizer, training.scheduler)
        losses.append(step["loss"])
    assert losses == pytest.approx(GOLDEN, abs=1e-5, rel=0)


def test_the_plain_forms_give_the_golden_losses(training):
    config, size = training.config, len(training.vocabularies[1])
    torch.manual_seed(config.seed)
    model = at.make_model(size, size, **SIZES, share_embeddings=True, max_len=config.max_len)
    loss_compute = at.SimpleLossCompute(model.generator, at.LabelSmoothing(size, at.PAD, 0.1))
    factor = config.factor * (training.warmup / config.warmup) ** 0.5
    curve = functools.partial(at.linear_rate, total=training.total)
    optimizer = at.make_optimizer(model, factor, training.warmup, curve)
    losses = []
    for batch in first_batches(training):
        loss, _ = at.run_epoch([batch], model, loss_compute, *optimizer)
        losses.append(loss)
    assert losses == pytest.approx(GOLDEN, abs=1e-5, rel=0)
