"""What our training is measured beside: `nn.Transformer`, and the way of 2022."""

import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

import the_annotated_transformer as at

ACCUMULATED = 10  # batches to an update of 2022


class TorchModel(nn.Module):
    """nn.Transformer between our embeddings and our generator, called like our model."""

    def __init__(self, vocabularies: Sequence, config: at.Config):
        super().__init__()
        D = config.d_model
        dropout = config.dropout
        source, target = map(len, vocabularies)
        self.core = nn.Transformer(
            D, config.h, config.N, config.N, config.d_ff, dropout,
            layer_norm_eps=1e-6, batch_first=True, norm_first=True,
        )  # fmt: skip
        for module in self.core.modules():  # without this dropout, a fused kernel works on CPUs
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = config.attention_dropout
        positions = at.PositionalEncoding(D, dropout)
        self.src_embed = nn.Sequential(at.Embeddings(D, source), positions)
        self.tgt_embed = nn.Sequential(at.Embeddings(D, target), positions)
        self.generator = at.Generator(D, target)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        closed = ~src_mask.squeeze(1)
        causal = ~at.subsequent_mask(tgt.size(1))[0].to(tgt.device)  # hides a target's padding, too
        return self.core(
            self.src_embed(src), self.tgt_embed(tgt), tgt_mask=causal,
            src_key_padding_mask=closed, memory_key_padding_mask=closed, tgt_is_causal=True,
        )  # fmt: skip


def batches_of_2022(corpus: at.Corpus, vocabularies: Sequence[at.Vocabulary]) -> Iterator[at.Batch]:
    """Batches of 32 pairs, for ever, padded to 72 tokens, cut into words when they are made."""
    size = 32
    length = 72
    tokenizers = at.load_tokenizers(corpus.languages)
    order = random.Random(1)
    pairs = list(corpus.pairs("train"))

    def ids(text: str, side: int) -> list[int]:
        words = [token.text for token in tokenizers[side](text)][: length - 2]
        known = [vocabularies[side].index.get(word, at.UNKNOWN) for word in words]
        return [at.START, *known, at.END] + [at.PAD] * (length - 2 - len(words))

    while True:
        order.shuffle(pairs)
        for group in at.grouped(pairs, size):
            src, tgt = (torch.tensor([ids(pair[side], side) for pair in group]) for side in (0, 1))
            yield at.Batch(src, tgt)


def loss_by_table(self: at.LabelSmoothing, log_probs: Tensor, target: Tensor) -> Tensor:
    """The same loss, from the whole target distribution."""
    table = at.smoothed_target(self, target.flatten()).to(log_probs.device)  # (tokens, V)
    return nn.functional.kl_div(log_probs.flatten(0, -2), table, reduction="sum")


NOT_IN_2022 = (  # methods that are faster than those of 2022, and what takes their place
    (at.FastDropout, "forward", nn.Dropout.forward),
    (at.LabelSmoothing, "forward", loss_by_table),
    (nn.LayerNorm, "forward", at.LayerNorm.forward),
)


def use_code_of_2022() -> None:
    """From now on this process computes as the code of 2022 did."""
    for owner, name, slower in NOT_IN_2022:
        setattr(owner, name, slower)
