"""Our weights in CTranslate2, an engine that is written for translating alone."""

import re
import tempfile
from collections.abc import Callable

from torch import Tensor

import the_annotated_transformer as at

OPENNMT = {  # our names of weights, as patterns: those of OpenNMT, which CTranslate2 reads
    r"(encoder.+)sublayer.0.norm": r"\1layer_norm",
    r"(encoder.+)sublayer.1.norm": r"\1feed_forward.layer_norm",
    r"sublayer.0.norm": "layer_norm_1",
    r"sublayer.1.norm": "layer_norm_2",
    r"sublayer.2.norm": "feed_forward.layer_norm",
    r"coder.norm": "coder.layer_norm",
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


def decoder(translator: at.Translator, beam: int, threads: int) -> Callable:
    """CTranslate2, in fp32, called as `beam_search` is; its length penalty is its own."""
    import ctranslate2
    from ctranslate2.converters.opennmt_py import set_transformer_spec
    from ctranslate2.specs.transformer_spec import TransformerSpec

    model = translator.model
    weights = {}
    for name, weight in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        for ours, theirs in OPENNMT.items():
            name = re.sub(ours, theirs, name)
        weights[name] = weight.detach()
    spec = TransformerSpec.from_config(translator.config.N, translator.config.h)
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
        engine = ctranslate2.Translator(folder, compute_type="float32", intra_threads=threads)
    number_of = {word: number for number, word in enumerate(target)}

    def decode(_, src: Tensor, src_mask: Tensor, max_len: Tensor, start_symbol: int) -> Tensor:
        sentences = [[source[n] for n in row if n != at.PAD] for row in src.tolist()]
        longest = int(max_len.max()) - 1
        results = engine.translate_batch(
            sentences, beam_size=beam, length_penalty=0.6, max_decoding_length=longest
        )
        return at.pad_ids([[number_of[word] for word in best.hypotheses[0]] for best in results])

    return decode
