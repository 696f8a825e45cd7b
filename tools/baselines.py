"""What `make bench` measures our code against.

- `TorchModel`: PyTorch's own `nn.Transformer`, between an embedding and a linear map, on our
  batches. Its attention has no dropout on the weights, as ours has none, since PyTorch's fused
  kernel works on a CPU only without it. Its loss is `F.cross_entropy` with label smoothing.
- `feed_of_2022`: how the version of 2022 fed its model: 32 sentences a batch in the order of a
  shuffled corpus, each side padded to 72 symbols, the text cut into words by spaCy inside the
  collate function, every time anew. `MaterialisedModel` is what such a batch meets there: our
  plain model, weights of attention stored (with dropout on them too), log-probabilities of all
  positions, padding included, and a dense table of smoothed targets.
- `plain_decoding`: greedy decoding of one sentence at a time, the whole prefix computed again
  for each symbol.
- `ctranslate2_model`: the same weights in CTranslate2, an engine in C++ made for speed.

PyTorch's model and CTranslate2 run in each format and number of processes that they gain from; the
feed of 2022 stays as it was, in fp32 and one process with all threads.
"""

import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import the_annotated_transformer as at

SMOOTHING = 0.1


class Embedding(nn.Module):
    """An embedding, sinusoids and dropout from PyTorch's parts: (B, T) -> (B, T, D)."""

    def __init__(self, vocab: int, d_model: int, dropout: float):
        super().__init__()
        self.lut, self.dropout = nn.Embedding(vocab, d_model), nn.Dropout(dropout)
        self.register_buffer("pe", at.PositionalEncoding(d_model, 0.0, 512).pe)
        self.scale = d_model**0.5

    def forward(self, ids: Tensor) -> Tensor:
        return self.dropout(self.lut(ids) * self.scale + self.pe[:, : ids.size(1)])


class TorchModel(nn.Module):
    """nn.Transformer with its loss: a `Batch` -> the sum over real symbols."""

    def __init__(self, vocabs: tuple[int, int], config: at.Config, autocast=None):
        super().__init__()
        D, dropout = config.d_model, config.dropout
        settings = {"batch_first": True, "norm_first": True, "dropout": dropout}
        self.core = nn.Transformer(
            D, config.h, config.N, config.N, config.d_ff, layer_norm_eps=1e-6, **settings
        )
        for module in self.core.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = config.attention_dropout
        self.source, self.target = (Embedding(size, D, dropout) for size in vocabs)
        self.proj, self.autocast = nn.Linear(D, vocabs[1]), autocast

    def forward(self, batch: at.Batch) -> Tensor:
        with torch.autocast("cpu", self.autocast, enabled=self.autocast is not None):
            closed = ~batch.src_mask.squeeze(1)
            causal = ~at.subsequent_mask(batch.tgt.size(1))[0]
            states = self.core(
                self.source(batch.src),
                self.target(batch.tgt),
                tgt_mask=causal,
                src_key_padding_mask=closed,
                memory_key_padding_mask=closed,
                tgt_is_causal=True,
            )  # padding stands at the end of a target: the causal mask hides it from all that count
            real = batch.tgt_y != at.PAD
            logits = self.proj(states[real]).float()  # (tokens, V)
        wanted = batch.tgt_y[real]
        return F.cross_entropy(logits, wanted, label_smoothing=SMOOTHING, reduction="sum")


class MaterialisedModel(nn.Module):
    """Our plain model and its loss: stored weights, all positions, a table of targets."""

    def __init__(self, vocabs: tuple[int, int], config: at.Config):
        super().__init__()
        sizes = config.N, config.d_model, config.d_ff, config.h, config.dropout
        self.model = at.make_model(*vocabs, *sizes)
        self.criterion = at.LabelSmoothing(vocabs[1], at.PAD, SMOOTHING)

    def forward(self, batch: at.Batch) -> Tensor:
        for attn in itertools.chain(*at.attentions_of(self.model).values()):
            attn.record = []  # and so it computes in the form that stores its weights
        states = self.model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask)
        log_probs = self.model.generator(states).flatten(0, 1)  # (B·T, V)
        wanted = self.criterion.distribution(batch.tgt_y.flatten())  # (B·T, V)
        return F.kl_div(log_probs, wanted, reduction="sum")


def feed_of_2022(
    corpus: at.Corpus, vocabularies: Sequence[at.Vocabulary], seed: int = 1
) -> Iterator[at.Batch]:
    """Batches of 32 pairs for ever, both sides padded to 72, tokenized while training."""
    size, length = 32, 72
    tokenizers, order = at.load_tokenizers(corpus.languages), random.Random(seed)

    def ids(text: str, side: int) -> list[int]:
        words = [token.text for token in tokenizers[side](text)][: length - 2]
        return [at.START, *(vocabularies[side].index.get(w, at.UNKNOWN) for w in words), at.END]

    while True:
        pairs = list(corpus.splits["train"])
        order.shuffle(pairs)
        for group in at.grouped(pairs, size):
            src, tgt = (
                torch.stack([F.pad(torch.tensor(row), (0, length - len(row)), value=at.PAD)
                             for row in (ids(pair[side], side) for pair in group)])
                for side in (0, 1)
            )  # fmt: skip
            yield at.Batch(src, tgt)


def plain_decoding(translator: at.Translator, rows: Sequence[list[int]]) -> int:
    """Decode sentences of ids one by one, greedily and without a cache; symbols written."""
    written = 0
    for row in rows:
        batch = at.Batch(torch.tensor([row]))
        cap = at.length_cap(len(row), translator.max_len)
        found = at.greedy_decode(translator.model, batch.src, batch.src_mask, cap, at.START)
        written += found.numel()
    return written


def ctranslate2_model(translator: at.Translator, folder: Path, compute: str, threads: int):
    """A CTranslate2 translator with our weights; `compute` is its compute type."""
    import ctranslate2
    from ctranslate2.specs import transformer_spec

    sizes = translator.model.arguments
    state = {name: value.numpy() for name, value in translator.model.state_dict().items()}
    spec = transformer_spec.TransformerSpec.from_config((sizes["N"], sizes["N"]), sizes["h"])
    spec.config.decoder_start_token = at.SPECIALS[at.START]
    spec.config.layer_norm_epsilon = 1e-6
    pe = translator.model.src_embed[1].pe[0].numpy()
    for side, ours in (("encoder", "src_embed"), ("decoder", "tgt_embed")):
        part = getattr(spec, side)
        embeddings = part.embeddings[0] if side == "encoder" else part.embeddings
        embeddings.weight = state[f"{ours}.0.lut.weight"]
        part.position_encodings.encodings = pe
        set_norm(part.layer_norm, state, f"{side}.norm")
        for number, layer in enumerate(part.layer):
            set_layer(layer, state, f"{side}.layers.{number}", decoder=side == "decoder")
    set_linear(spec.decoder.projection, state, "generator.proj")
    words = [list(vocabulary.words) for vocabulary in translator.vocabularies]
    spec.register_source_vocabulary(words[0])
    spec.register_target_vocabulary(words[1])
    spec.validate()
    spec.optimize(quantization=None)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))
    settings = {"compute_type": compute, "intra_threads": threads, "inter_threads": 1}
    return ctranslate2.Translator(str(folder), device="cpu", **settings)


def set_linear(spec, state: dict, name: str) -> None:
    spec.weight, spec.bias = state[f"{name}.weight"], state[f"{name}.bias"]


def set_norm(spec, state: dict, name: str) -> None:
    spec.gamma, spec.beta = state[f"{name}.scale"], state[f"{name}.shift"]


def set_layer(spec, state: dict, name: str, decoder: bool) -> None:
    """An encoder or decoder layer; CTranslate2 keeps maps of one input in one matrix."""
    set_attention(spec.self_attention, state, f"{name}.self_attn", together=(0, 1, 2))
    set_norm(spec.self_attention.layer_norm, state, f"{name}.sublayer.0.norm")
    if decoder:
        set_attention(spec.attention, state, f"{name}.src_attn", together=(1, 2))
        set_norm(spec.attention.layer_norm, state, f"{name}.sublayer.1.norm")
    set_norm(spec.ffn.layer_norm, state, f"{name}.sublayer.{1 + decoder}.norm")
    set_linear(spec.ffn.linear_0, state, f"{name}.feed_forward.widen")
    set_linear(spec.ffn.linear_1, state, f"{name}.feed_forward.narrow")


def set_attention(spec, state: dict, name: str, together: Sequence[int]) -> None:
    """Queries, keys and values in one matrix, or queries apart; then the output."""
    from ctranslate2.converters import utils
    from ctranslate2.specs import common_spec

    parts = [common_spec.LinearSpec() for _ in together]
    for part, number in zip(parts, together, strict=True):
        set_linear(part, state, f"{name}.linears.{number}")
    utils.fuse_linear(spec.linear[0 if len(together) == 3 else 1], parts)
    if len(together) == 2:
        set_linear(spec.linear[0], state, f"{name}.linears.0")
    set_linear(spec.linear[-1], state, f"{name}.linears.3")
