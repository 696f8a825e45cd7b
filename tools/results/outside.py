"""The outside baseline: nn.Transformer between our embeddings and our generator.

Our model shares its weights, so all that reads our model (checkpoints, validation, scores) sees
what PyTorch's has learnt.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

import the_annotated_transformer as at


def attentions_of(model: nn.Module) -> list[nn.Module]:
    """The attentions of our model or of PyTorch's, in the order of its layers."""
    kinds = at.MultiHeadedAttention, nn.MultiheadAttention
    return [module for module in model.modules() if isinstance(module, kinds)]


class TorchModel(nn.Module):
    """nn.Transformer in the place of our stacks, which take its weights and share them."""

    def __init__(self, ours: at.EncoderDecoder, config: at.ModelConfig):
        super().__init__()
        self.core = nn.Transformer(
            config.d_model, config.h, config.N, config.N, config.d_ff, config.dropout,
            layer_norm_eps=1e-6, batch_first=True, norm_first=config.norm_first,
        )  # fmt: skip
        if not config.norm_first:  # the norm of the last layer ends a stack
            self.core.encoder.norm = self.core.decoder.norm = nn.Identity()
        self.src_embed = ours.src_embed
        self.tgt_embed = ours.tgt_embed
        self.generator = ours.generator
        for one, other in zip(attentions_of(ours), attentions_of(self), strict=True):
            other.dropout = config.attention_dropout  # without, a fused kernel works on CPUs
            # PyTorch keeps the maps of query, key and value in one matrix, of which ours are parts.
            weights, biases = other.in_proj_weight.data, other.in_proj_bias.data
            parts = zip(one.linears[:3], weights.chunk(3), biases.chunk(3), strict=True)
            for linear, weight, bias in parts:
                linear.weight = nn.Parameter(weight)
                linear.bias = nn.Parameter(bias)
            one.linears[3] = other.out_proj
        for side in ("encoder", "decoder"):
            one, other = ours.get_submodule(side), self.core.get_submodule(side)
            one.norm = other.norm
            for layer, theirs in zip(one.layers, other.layers, strict=True):
                layer.feed_forward.widen = theirs.linear1
                layer.feed_forward.narrow = theirs.linear2
                for number, connection in enumerate(layer.sublayer, 1):
                    connection.norm = theirs.get_submodule(f"norm{number}")

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        closed = ~src_mask.squeeze(1)
        causal = ~at.subsequent_mask(tgt.size(1))[0].to(tgt.device)  # hides a target's padding, too
        return self.core(
            self.src_embed(src), self.tgt_embed(tgt), tgt_mask=causal,
            src_key_padding_mask=closed, memory_key_padding_mask=closed, tgt_is_causal=True,
        )  # fmt: skip


def train_outside(config: at.Config, folder: Path) -> None:
    """Train nn.Transformer, or go on with it, with the text, batches, loss and rates of a run."""
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        at.prepare(config, folder)
    run = at.open_run(folder, at.start_worker())
    last = torch.load(folder / "last.pt", weights_only=True, map_location="cpu")
    torch.manual_seed(config.seed)
    run.net = TorchModel(run.model, run.config)
    if run.history:  # or else it begins with PyTorch's initial weights
        run.model.load_state_dict(last["model"])
    run.optimizer, run.scheduler = at.restored_optimizer(run.config, run.net, run.train, last)
    at.fit(run)
