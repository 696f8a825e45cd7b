"""The recipe computes what it always computed: losses of its first fifty updates.

They were recorded from commit 7b5a3ab, in fp32, by the fast forms. Other numbers are right only
after a change of what the recipe computes: vocabulary, first weights, batches, model, loss,
schedule or optimizer.
"""

import json
from types import SimpleNamespace

import pytest
import torch
from conftest import PROJECT

import the_annotated_transformer as at

SIZES = {"N": 2, "d_model": 32, "d_ff": 64, "h": 2, "dropout": 0.0}
GOLDEN = json.loads((PROJECT / "tests" / "golden_losses.json").read_text())["losses"]


ALONE = at.Worker(0, 1, torch.device("cpu"), None)


@pytest.fixture
def given() -> SimpleNamespace:
    """Settings, vocabularies and length of a training, and one batch for each of fifty updates."""
    config = at.Config(data="builtin", vocab_size=300, batch_tokens=512, epochs=32, **SIZES)
    data = at.encode_corpus(at.find_corpus("builtin"), config)
    config = at.resolve(config, data)
    updates = at.updates_of_epoch(config, data, 0)[:50]
    return SimpleNamespace(
        config=config,
        data=data,
        criterion=at.LabelSmoothing(len(data.vocabularies[1]), at.PAD, 0.1),
        total=at.planned_updates(config, data),
        batches=[at.share_of(data.train, numbers, ALONE) for [numbers] in updates],
    )


def test_the_fast_forms_give_the_golden_losses(given):
    model = at.new_model(given.config, given.data.vocabularies)
    optimizer = at.new_optimizer(model, given.config, given.total)
    loss_model = at.make_fast(at.ModelWithLoss(model, given.criterion)).train()
    losses = []
    for batch in given.batches:
        step = at.train_step(loss_model, [batch], *optimizer)
        losses.append(step.loss / step.tokens)
    expected = pytest.approx(GOLDEN, abs=1e-5, rel=0)
    assert losses == expected


def test_the_plain_forms_give_the_golden_losses(given):
    size = len(given.data.vocabularies[1])
    torch.manual_seed(given.config.seed)
    model = at.make_model(size, size, **SIZES, share_embeddings=True, max_len=given.config.max_len)
    loss_compute = at.SimpleLossCompute(model.generator, given.criterion)
    optimizer = at.new_optimizer(model, given.config, given.total)
    losses = []
    for batch in given.batches:
        loss, _ = at.run_epoch([batch], model, loss_compute, *optimizer)
        losses.append(loss)
    expected = pytest.approx(GOLDEN, abs=1e-5, rel=0)
    assert losses == expected
