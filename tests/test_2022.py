"""Names and calls that readers know from 2018 and 2022."""

import inspect

import pytest
import torch

import the_annotated_transformer as at

CALLS = """\
attention(query, key, value, mask, dropout)
subsequent_mask(size)
LayerNorm(features, eps)
SublayerConnection(size, dropout)
MultiHeadedAttention(h, d_model, dropout)
PositionwiseFeedForward(d_model, d_ff, dropout)
Embeddings(d_model, vocab)
PositionalEncoding(d_model, dropout, max_len)
make_model(src_vocab, tgt_vocab, N, d_model, d_ff, h, dropout)
EncoderDecoder.forward(self, src, tgt, src_mask, tgt_mask)
EncoderDecoder.encode(self, src, src_mask)
EncoderDecoder.decode(self, memory, src_mask, tgt, tgt_mask)
Batch(src, tgt, pad)
rate(step, model_size, factor, warmup)
LabelSmoothing(size, padding_idx, smoothing)
LabelSmoothing.forward(self, log_probs, target)
SimpleLossCompute(generator, criterion)
SimpleLossCompute.__call__(self, states, target, ntokens)
run_epoch(data_iter, model, loss_compute, optimizer, scheduler, mode, accum_iter, train_state)
data_gen(V, batch_size, nbatches)
greedy_decode(model, src, src_mask, max_len, start_symbol)
average(model, models)
translate(translator, sentences)
"""
OTHERS = (
    "clones Encoder EncoderLayer Decoder DecoderLayer Generator TrainState load_tokenizers tokenize"
    " build_vocabulary create_dataloaders train_model load_trained_model"
)


@pytest.mark.parametrize("call", CALLS.splitlines())
def test_a_call_takes_its_arguments_in_the_known_order(call):
    name, _, arguments = call.removesuffix(")").partition("(")
    known = at
    for part in name.split("."):
        known = getattr(known, part)
    parameters = list(inspect.signature(known).parameters)
    assert parameters[: len(arguments.split(", "))] == arguments.split(", ")


def test_import_star_brings_the_known_names():
    names = {}
    exec("from the_annotated_transformer import *", names)
    known = {call.partition("(")[0].partition(".")[0] for call in CALLS.splitlines()}
    assert known | set(OTHERS.split()) | {"START", "PAD", "torch", "nn"} <= set(names)
    assert not {"os", "json", "alt", "main"} & set(names)


class Idle:
    """Optimizer and scheduler of an evaluation, as programs of 2022 pass them."""

    param_groups = ({"lr": 0},)

    def step(self):
        raise AssertionError("an evaluation learns nothing")

    zero_grad = step


def test_the_copy_task_of_2022_runs_with_three_changed_lines():
    torch.manual_seed(3)
    model = at.make_model(12, 12, N=1, d_model=32, d_ff=64, h=2)
    criterion = at.LabelSmoothing(size=12, padding_idx=at.PAD, smoothing=0.1)  # changed
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3, betas=(0.9, 0.98), eps=1e-9)
    width = model.src_embed[0].d_model
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: at.rate(step, model_size=width, factor=1.0, warmup=50)
    )
    loss_compute = at.SimpleLossCompute(model.generator, criterion)
    losses = []
    for _ in range(3):
        batches = at.data_gen(12, 6, 3)
        at.run_epoch(batches, model, loss_compute, optimizer, schedule, mode="train", accum_iter=1)
        idle = Idle()
        judged = at.data_gen(12, 6, 1)
        loss, _ = at.run_epoch(judged, model, loss_compute, idle, idle, mode="eval")
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    src = torch.tensor([[4, 9, 5, 8, 6, 7]])  # changed: no special tokens
    model.eval()
    written = at.greedy_decode(  # changed: the start symbol, and a length with both ends
        model, src, torch.ones(1, 1, 6), max_len=8, start_symbol=at.START
    )
    length = written.size(1) - 1  # of the last call
    assert model.decoder.layers[0].self_attn.attn.shape == (1, 2, length, length)
    assert model.decoder.layers[0].src_attn.attn.shape == (1, 2, length, 6)
