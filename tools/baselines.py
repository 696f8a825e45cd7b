"""What `make bench` measures our code against: nn.Transformer, the feed of 2022, CTranslate2."""

import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import the_annotated_transformer as at


class TorchModel(nn.Module):
    """nn.Transformer between our embeddings and a linear map: a batch -> its loss, summed."""

    def __init__(self, vocabularies: Sequence, config: at.Config, autocast=None):
        super().__init__()
        D, dropout = config.d_model, config.dropout
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
        self.proj = nn.Linear(D, target)
        self.smoothing, self.autocast = config.smoothing, autocast

    def forward(self, batch: at.Batch) -> Tensor:
        closed, real = ~batch.src_mask.squeeze(1), batch.tgt_y != at.PAD
        causal = ~at.subsequent_mask(batch.tgt.size(1))[0]  # hides a target's padding, too
        with torch.autocast("cpu", self.autocast, enabled=self.autocast is not None):
            states = self.core(
                self.src_embed(batch.src), self.tgt_embed(batch.tgt), tgt_mask=causal,
                src_key_padding_mask=closed, memory_key_padding_mask=closed, tgt_is_causal=True,
            )  # fmt: skip
            logits = self.proj(states[real]).float()  # (tokens, V)
        wanted = batch.tgt_y[real]
        return F.cross_entropy(logits, wanted, label_smoothing=self.smoothing, reduction="sum")


def feed_of_2022(corpus: at.Corpus, vocabularies: Sequence[at.Vocabulary]) -> Iterator[at.Batch]:
    """Batches of 32 pairs, for ever, padded to 72 symbols, cut into words when they are made."""
    size, length = 32, 72
    tokenizers, order = at.load_tokenizers(corpus.languages), random.Random(1)
    pairs = list(corpus.splits["train"])

    def ids(text: str, side: int) -> list[int]:
        words = [token.text for token in tokenizers[side](text)][: length - 2]
        known = [vocabularies[side].index.get(word, at.UNKNOWN) for word in words]
        return [at.START, *known, at.END] + [at.PAD] * (length - 2 - len(words))

    while True:
        order.shuffle(pairs)
        for group in at.grouped(pairs, size):
            src, tgt = (torch.tensor([ids(pair[side], side) for pair in group]) for side in (0, 1))
            yield at.Batch(src, tgt)


OPENNMT = {  # our names of weights, as patterns: those of OpenNMT, which CTranslate2 reads
    r"(encoder.+)sublayer.0.norm": r"\1layer_norm",
    r"(encoder.+)sublayer.1.norm": r"\1feed_forward.layer_norm",
    r"sublayer.0.norm": "layer_norm_1",
    r"sublayer.1.norm": "layer_norm_2",
    r"sublayer.2.norm": "feed_forward.layer_norm",
    r"coder.norm": "coder.layer_norm",
    r"scale$": "weight",
    r"shift$": "bias",
    r"encoder.layers": "encoder.transformer",
    r"decoder.layers": "decoder.transformer_layers",
    r"src_attn": "context_attn",
    r"linears.0": "linear_query",
    r"linears.1": "linear_keys",
    r"linears.2": "linear_values",
    r"linears.3": "final_linear",
    r"widen": "w_1",
    r"narrow": "w_2",
    r"src_embed": "encoder.embeddings.make_embedding",
    r"tgt_embed": "decoder.embeddings.make_embedding",
    r"0.lut": "emb_luts.0",
    r"1.pe": "pe.pe",
    r"generator.proj": "generator",
}


def ctranslate2_decoder(translator: at.Translator, dtype: str, beam: int, threads: int) -> Callable:
    """CTranslate2 with our weights, called as `beam_search` is; its length penalty is its own."""
    import ctranslate2
    from ctranslate2.converters.opennmt_py import set_transformer_spec
    from ctranslate2.specs.transformer_spec import TransformerSpec

    model, weights = translator.model, {}
    for name, weight in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        for ours, theirs in OPENNMT.items():
            name = re.sub(ours, theirs, name)
        weights[name] = weight.detach()
    spec = TransformerSpec.from_config(model.arguments["N"], model.arguments["h"])
    spec.config.decoder_start_token = at.SPECIALS[at.START]
    spec.config.layer_norm_epsilon = 1e-6
    set_transformer_spec(spec, weights)
    source, target = (list(vocabulary.words) for vocabulary in translator.vocabularies)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.validate()
    spec.optimize()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        compute = dtype.replace("fp", "float")
        engine = ctranslate2.Translator(folder, compute_type=compute, intra_threads=threads)
    number_of = {word: number for number, word in enumerate(target)}

    def decode(_, src: Tensor, src_mask: Tensor, max_len: int, start_symbol: int) -> Tensor:
        sentences = [[source[n] for n in row if n != at.PAD] for row in src.tolist()]
        results = engine.translate_batch(
            sentences, beam_size=beam, length_penalty=0.6, max_decoding_length=max_len - 1
        )
        return at.pad_ids([[number_of[word] for word in best.hypotheses[0]] for best in results])

    return decode
