"""Weights of 2018, of 2022 and of the first edition become a folder of this one, and any model is
rounded to int8. The older code is built here from its description alone."""

import hashlib
import io
import json
import math
import random
import re
from pathlib import Path

import convert
import int8
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor

import the_annotated_transformer as at
from the_annotated_transformer import END, SPECIALS, START, Batch, pad_ids

SIZES = {"source": 11, "target": 13, "N": 2, "D": 12, "hidden": 20, "positions": 9}
HEADS = 3


@pytest.fixture(autouse=True)
def seeds():
    torch.manual_seed(0)


# The older code ---------------------------------------------------------------------------------


def sinusoids(positions: int, D: int) -> Tensor:
    """Sine and cosine in turn, one number after the other: (1, positions, D)."""
    wave = math.sin, math.cos
    rows = [
        [wave[i % 2](p / 10_000 ** ((i - i % 2) / D)) for i in range(D)] for p in range(positions)
    ]
    return torch.tensor([rows])


def older_state(source: int, target: int, N: int, D: int, hidden: int, positions: int) -> dict:
    """Random weights under the names, and in the shapes, of the older code."""
    linears, norms = {"generator.proj": (target, D)}, ["encoder.norm", "decoder.norm"]
    for stack, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "src_attn"])):
        for layer in (f"{stack}.layers.{n}" for n in range(N)):
            linears |= {f"{layer}.{a}.linears.{n}": (D, D) for a in attentions for n in range(4)}
            linears[f"{layer}.feed_forward.w_1"] = hidden, D
            linears[f"{layer}.feed_forward.w_2"] = D, hidden
            norms += [f"{layer}.sublayer.{n}.norm" for n in range(1 + len(attentions))]
    state = {f"{name}.weight": torch.randn(shape) * 0.3 for name, shape in linears.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) * 0.3 for name, shape in linears.items()}
    state |= {f"{name}.a_2": torch.rand(D) + 0.5 for name in norms}
    state |= {f"{name}.b_2": torch.randn(D) * 0.3 for name in norms}
    for side, words in (("src", source), ("tgt", target)):
        state[f"{side}_embed.0.lut.weight"] = torch.randn(words, D) * D**-0.5
        state[f"{side}_embed.1.pe"] = sinusoids(positions, D)
    return state


def older_log_probs(state: dict[str, Tensor], h: int, batch: Batch) -> Tensor:
    """What the older code computes with such a state dict, step by step."""

    def norm(x: Tensor, name: str) -> Tensor:
        s, mean = torch.std_mean(x, dim=-1, unbiased=True, keepdim=True)
        return state[f"{name}.a_2"] * (x - mean) / (s + 1e-6) + state[f"{name}.b_2"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def attend(x: Tensor, y: Tensor, mask: Tensor, name: str) -> Tensor:
        q, k, v = (
            linear(z, f"{name}.linears.{n}").chunk(h, dim=-1) for n, z in enumerate((x, y, y))
        )
        heads = [
            (a @ b.mT / math.sqrt(a.size(-1))).masked_fill(~mask, -1e9).softmax(dim=-1) @ c
            for a, b, c in zip(q, k, v, strict=True)
        ]
        return linear(torch.cat(heads, dim=-1), f"{name}.linears.3")

    def stack(name: str, ids: Tensor, mask: Tensor, memory: Tensor | None = None) -> Tensor:
        side = "src" if memory is None else "tgt"
        table, pe = state[f"{side}_embed.0.lut.weight"], state[f"{side}_embed.1.pe"]
        x = table[ids] * math.sqrt(table.size(1)) + pe[:, : ids.size(1)]
        layers = sum(n.startswith(name) and n.endswith("w_1.bias") for n in state)
        for layer in (f"{name}.layers.{n}" for n in range(layers)):
            y = norm(x, f"{layer}.sublayer.0.norm")
            x = x + attend(y, y, mask, f"{layer}.self_attn")
            if memory is not None:
                y = norm(x, f"{layer}.sublayer.1.norm")
                x = x + attend(y, memory, batch.src_mask, f"{layer}.src_attn")
            y = norm(x, f"{layer}.sublayer.{1 if memory is None else 2}.norm")
            x = x + linear(
                linear(y, f"{layer}.feed_forward.w_1").relu(), f"{layer}.feed_forward.w_2"
            )
        return norm(x, f"{name}.norm")

    memory = stack("encoder", batch.src, batch.src_mask)
    states = stack("decoder", batch.tgt, batch.tgt_mask, memory)
    return F.log_softmax(linear(states, "generator.proj"), dim=-1)


def some_batch(source: int = 11, target: int = 13) -> Batch:
    """Two pairs of unequal lengths, so that both sides have padding."""
    ids = [torch.randint(3, limit, (8,)).tolist() for limit in (source, target)]
    src = pad_ids([[*ids[0][:3], END], [*ids[0][3:], END]])
    return Batch(src, pad_ids([[START, *ids[1][:5], END], [START, *ids[1][5:], END]]))


def log_probs(model: torch.nn.Module, batch: Batch) -> Tensor:
    with torch.no_grad():
        return model.generator(model(batch.src, batch.tgt, batch.src_mask, batch.tgt_mask))


def some_words(source: int = 11, target: int = 13) -> dict[str, list[str]]:
    sides = {"source": source, "target": target}
    return {side: [*SPECIALS, *(f"{side}{n}" for n in range(4, sides[side]))] for side in sides}


def converted(folder: Path, state: object, lists: dict | None = None, **how) -> at.Translator:
    """The state dict as a file, and the words as another, made into a model of this edition."""
    torch.save(state, folder / "older.pt")
    (folder / "words.json").write_text(json.dumps(lists or some_words()))
    settings = {"heads": HEADS, "words": folder / "words.json"} | how
    return convert.convert(folder / "older.pt", folder / "model", **settings)


def refused(folder: Path, state: object, lists: dict | None = None, **how) -> str:
    """The error, which names the file; nothing is written."""
    with pytest.raises(ValueError) as caught:
        converted(folder, state, lists, **how)
    assert str(folder / "older.pt") in str(caught.value) and not (folder / "model").exists()
    return str(caught.value)


# 2018 and 2022 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "h, change",
    [
        (3, {}),
        (1, {"N": 1}),
        (6, {"N": 3, "source": 17, "target": 7}),
        (2, {"D": 4, "hidden": 3}),
        (8, {"D": 64, "hidden": 48, "positions": 5000}),
    ],
    ids=str,
)
def test_the_same_log_probabilities(h, change, tmp_path):
    sizes = SIZES | change
    sides = sizes["source"], sizes["target"]
    state, batch, words = older_state(**sizes), some_batch(*sides), some_words(*sides)
    translator = converted(tmp_path, state, words, heads=h, languages="fr-en")
    ours = log_probs(translator.model, batch)
    torch.testing.assert_close(ours, older_log_probs(state, h, batch), atol=1e-4, rtol=0)
    assert tuple(translator.languages) == ("fr", "en") and not translator.model.training
    source, target = (list(one.words) for one in translator.vocabularies)
    assert [source[: sides[0]], target] == list(words.values())
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert files == {"config.json", "model.safetensors", "words.json"}


def test_the_number_of_heads_matters(tmp_path):
    state, batch = older_state(**SIZES), some_batch()
    wrong = log_probs(converted(tmp_path, state, heads=2).model, batch)
    assert (wrong - older_log_probs(state, HEADS, batch)).abs().max() > 0.01


def test_flat_vectors_come_near_enough(tmp_path):
    """Small inputs and layers that add little: deviations of 0.1 to 0.3, where eps counts most."""
    state, batch, deviations = older_state(**SIZES), some_batch(), []
    for name in state:
        if ".lut." in name:
            state[name] *= 0.2
        elif "linears.3" in name or "w_2" in name:
            state[name] *= 0.01
    model = converted(tmp_path, state).model
    for side in ("src", "tgt"):
        state[f"{side}_embed.1.pe"] *= 0.2
        getattr(model, f"{side}_embed")[1].pe.mul_(0.2)
    for module in model.modules():
        if isinstance(module, at.LayerNorm):
            module.register_forward_pre_hook(
                lambda _, inputs: deviations.append(inputs[0].std(-1, unbiased=False).flatten())
            )
    expected = older_log_probs(state, HEADS, batch)
    torch.testing.assert_close(log_probs(model, batch), expected, atol=1e-4, rtol=0)
    assert torch.cat(deviations).min() < 0.15 and torch.cat(deviations).max() < 0.35


@pytest.mark.parametrize("zipped", [True, False], ids=["2022", "2018"])
def test_both_formats_of_a_file_and_half_precision(zipped, tmp_path):
    """Halves are read without further loss; 2018 wrote no zip."""
    half = {name: tensor.half() for name, tensor in older_state(**SIZES).items()}
    whole, batch = {name: tensor.float() for name, tensor in half.items()}, some_batch()
    path, words = tmp_path / "half.pt", tmp_path / "words.json"
    torch.save(half, path, _use_new_zipfile_serialization=zipped)
    words.write_text(json.dumps(some_words()))
    model = convert.convert(path, tmp_path / "half", HEADS, words).model
    expected = log_probs(converted(tmp_path, whole).model, batch)
    assert torch.equal(log_probs(model, batch), expected)


def test_the_special_symbols_of_2018_find_their_places(tmp_path):
    """<unk> and <blank> came first, and the source had neither start nor end."""
    state, sides = older_state(**SIZES), {"source": 11, "target": 13}
    first = {"source": ["<unk>", "<blank>"], "target": ["<unk>", "<blank>", "<s>", "</s>"]}
    words = {side: first[side] + some_words(20, 20)[side][4:] for side in sides}
    words = {side: listed[: sides[side]] for side, listed in words.items()}
    with pytest.warns(UserWarning, match=r"source words lack \['<s>', '</s>'\]: they get zeros"):
        translator = converted(tmp_path, state, words)
    source, target = translator.vocabularies
    assert list(source.words[:4]) == list(target.words[:4]) == list(SPECIALS)
    assert sorted(source.words[:13]) == sorted([*words["source"], "<s>", "</s>"])

    texts = {"source": ["source4 source9 <unk>", "source7"], "target": ["target4 <unk> target5"]}
    older = {side: [line.split() for line in texts[side]] for side in texts}
    older["target"] = [["<s>", *older["target"][0], "</s>"]] * 2
    batches = []
    for ids in (words, {"source": source.words, "target": target.words}):
        rows = [[[list(ids[s]).index(w) for w in line] for line in older[s]] for s in older]
        blank = list(ids["source"]).index("<blank>")
        rows[0][1] += [blank] * 2
        batches.append(Batch(torch.tensor(rows[0]), torch.tensor(rows[1]), pad=blank))
    expected = older_log_probs(state, HEADS, batches[0])
    ours = log_probs(translator.model, batches[1])
    order = [words["target"].index(word) for word in target.words]
    torch.testing.assert_close(ours, expected[..., order], atol=1e-4, rtol=0)
    assert translator.model.src_embed[0].lut.weight[[START, END]].eq(0).all()


def test_a_word_may_follow_without_a_space(tmp_path):
    """2022 knew no mark for it: a source word is the same with and without one."""
    state, words = older_state(**SIZES), some_words()
    words["source"][4:7], words["target"][4:8] = ["Hund", ".", ")"], ["It", "'s", "on", "."]
    translator = converted(tmp_path, state, words)
    source, target = translator.vocabularies
    (ids,) = source.encode(["Hund (Hund)."], "de")
    matrix = translator.model.src_embed[0].lut.weight
    assert torch.equal(matrix[ids], state["src_embed.0.lut.weight"][[4, 3, 4, 6, 5]])
    assert target.decode([4, 5, 6, 7, END]) == "It's on."


def test_it_decodes(tmp_path):
    model = converted(tmp_path, older_state(**SIZES)).model
    src = pad_ids([[4, 5, 6, END], [7, END]])
    written = at.greedy_decode(model, src, (src != at.PAD).unsqueeze(1), 6, START)
    assert written.shape[0] == 2 and written.shape[1] <= 7


# What does not fit ------------------------------------------------------------------------------


def test_a_missing_name_or_an_entry_that_is_no_tensor_is_named(tmp_path):
    whole = older_state(**SIZES | {"N": 1})
    for name in whole:
        less = {other: tensor for other, tensor in whole.items() if other != name}
        for state in (less, whole | {name: [1.0, 2.0]}):
            with pytest.raises(ValueError, match=re.escape(name)):
                convert.from_older_checkpoint(state, HEADS)


def test_a_wrong_shape_is_refused():
    """Sizes are read from five axes: if one of these is wrong, another name may get the blame."""
    whole = older_state(**SIZES | {"N": 1})
    sizing = ("src_embed.", "generator.proj.weight", "encoder.layers.0.feed_forward.w_1.weight")
    for name, tensor in whole.items():
        for wrong in (tensor[..., :-2], tensor.unsqueeze(0), tensor.sum()):
            with pytest.raises(ValueError) as caught:
                convert.from_older_checkpoint(whole | {name: wrong}, HEADS)
            assert name.startswith(sizing) or name in str(caught.value)


@pytest.mark.parametrize(
    "name, tensor, words",
    [
        ("step", 7, ["step", "nothing"]),
        ("encoder.norm.scale", torch.ones(12), ["encoder.norm.scale", "nothing", "[12]"]),
        ("encoder.norm.a_2", torch.ones(1), ["encoder.norm.a_2", "[12]", "[1]"]),
        (
            "decoder.layers.2.feed_forward.w_1.bias",
            torch.ones(20),
            ["decoder.layers.2.", "nothing"],
        ),
        ("encoder.layers.5.feed_forward.w_1.bias", torch.ones(20), ["r.layers.2.", "no tensor"]),
        ("tgt_embed.1.pe", torch.ones(1, 8, 12), ["tgt_embed.1.pe", "[1, 9, 12]", "[1, 8, 12]"]),
        ("src_embed.1.pe", torch.randn(1, 9, 12), ["src_embed.1.pe", "no sinusoids"]),
    ],
)
def test_a_state_dict_of_another_layout(name, tensor, words, tmp_path):
    message = refused(tmp_path, older_state(**SIZES) | {name: tensor})
    assert all(word in message for word in words), message


def test_other_dictionaries(tmp_path):
    state = older_state(**SIZES)
    with_prefix = {f"module.{name}": tensor for name, tensor in state.items()}
    for other in ({}, {"model": state}, with_prefix, at.tiny_model().state_dict()):
        assert "no older state dict: it lacks" in refused(tmp_path, other)
    assert "no state dict" in refused(tmp_path, [state])


@pytest.mark.parametrize("h", [5, 0, -3])
def test_heads_that_do_not_divide(h, tmp_path):
    assert str(h) in refused(tmp_path, older_state(**SIZES), heads=h)


def test_words_that_do_not_fit(tmp_path):
    state, words = older_state(**SIZES), some_words()
    assert "--words" in refused(tmp_path, state, words=None)
    for side in words:
        for wrong in (words[side][:-1], [*words[side], "more"], [*words[side][:-1], SPECIALS[0]]):
            assert f"number of different {side} words fits" in refused(
                tmp_path, state, words | {side: wrong}
            )
    without = [word.replace("</s>", "<end>") for word in words["target"]]
    assert "['</s>']" in refused(tmp_path, state, words | {"target": without})
    assert "'target'" in refused(tmp_path, state, {"source": words["source"]})
    assert "words.json does not hold" in refused(tmp_path, state, [["a list"]])


def test_a_pickled_model_is_not_loaded(tmp_path, capsys):
    class Trap:
        def __reduce__(self):
            return print, ("executed",)

    whole = at.tiny_model()
    for number, content in enumerate([whole, Trap(), {"encoder.norm.a_2": Trap()}]):
        for zipped in (True, False):
            path = tmp_path / f"{number}{zipped}.pt"
            torch.save(content, path, _use_new_zipfile_serialization=zipped)
            with pytest.raises(ValueError, match=r"pickled model; nothing .*state_dict\(\)"):
                convert.convert(path, tmp_path / "model")
    assert not (tmp_path / "model").exists() and "executed" not in capsys.readouterr().out


def test_damage_to_a_state_dict_is_noticed(tmp_path):
    state, rng, bad = older_state(**SIZES), random.Random(0), tmp_path / "bad.pt"
    expected = log_probs(converted(tmp_path, state).model, batch := some_batch())
    good = (tmp_path / "older.pt").read_bytes()
    cuts = [good[: rng.randrange(len(good))] for _ in range(20)]
    flips = [(rng.randrange(len(good)), 1 << rng.randrange(8)) for _ in range(40)]
    flipped = [good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :] for at, bit in flips]
    noticed = 0
    for content in [b"", *cuts, *flipped]:
        bad.write_bytes(content)
        try:
            model = convert.convert(bad, tmp_path / "bad", HEADS, tmp_path / "words.json").model
        except ValueError as error:
            noticed += str(bad) in str(error)
        else:  # a byte that means nothing
            assert torch.equal(log_probs(model, batch), expected)
    assert noticed > 50


# The first edition ------------------------------------------------------------------------------


def tokenizer() -> str:
    """A small list of pieces as the first edition learnt them, as JSON."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    pieces = Tokenizer(models.BPE(unk_token="<unk>"))
    pieces.normalizer, pieces.decoder = normalizers.NFC(), decoders.Metaspace()
    cuts = [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
    pieces.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    trainer = trainers.BpeTrainer(vocab_size=40, special_tokens=list(SPECIALS), show_progress=False)
    pieces.train_from_iterator(["Ein Hund rennt.", "A dog is running."], trainer)
    return pieces.to_str()


def first_edition(words: bool, **changes) -> tuple[dict, at.nn.Module]:
    """What a checkpoint of the first edition held, but for the optimizer; and its model."""
    saved = list(some_words().values()) if words else [tokenizer()] * 2
    rows = (11, 13) if words else (len(json.loads(saved[0])["model"]["vocab"]),) * 2
    sizes = {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "dropout": 0.25, "attention_dropout": 0.0}
    sizes |= {"norm_first": True, "max_len": 32, "share_embeddings": not words} | changes
    model = at.make_model(*rows, **sizes)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    config = {"corpus": "auto", "languages": ("de", "en"), "pieces": 40, "seed": 1} | sizes
    content = {"config": config, "corpus": "some captions", "vocabularies": saved}
    return content | {"model": model.state_dict(), "optimizer": {"step": 7}}, model.eval()


def write_checkpoint(path: Path, content: dict) -> None:
    """As the first edition did: a line with a sum of what follows, then a zip of torch."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    checksum = hashlib.sha256(buffer.getvalue()).hexdigest().encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"annotated-transformer-1 " + checksum + b"\n" + buffer.getvalue())


def write_exported(folder: Path, content: dict, tensors: dict[str, Tensor]) -> None:
    """As the first edition did: settings and sums, weights, tokenizer."""
    about = {"name": "toy", "corpus": content["corpus"], "config": content["config"]}
    parts = {"config.json": json.dumps(about), "tokenizer.json": content["vocabularies"][0]}
    parts = {name: text.encode() for name, text in parts.items()}
    parts["model.safetensors"] = save(tensors)
    about["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    parts["config.json"] = json.dumps(about, indent=1).encode()
    folder.mkdir()
    for name, data in parts.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("words", [True, False], ids=["words", "pieces"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
def test_a_checkpoint_of_the_first_edition(words, norm_first, tmp_path):
    content, model = first_edition(words, norm_first=norm_first)
    write_checkpoint(tmp_path / "run" / "best.pt", content)
    write_checkpoint(tmp_path / "run" / "epoch-007.pt", content)
    translator = convert.convert(tmp_path / "run", tmp_path / "best")
    again = convert.convert(tmp_path / "run" / "epoch-007.pt", tmp_path / "seven")
    assert (translator.name, again.name) == ("run, best", "run, epoch-007")
    assert (translator.corpus, *translator.languages) == ("some captions", "de", "en")
    batch = some_batch()
    for one in (translator, again):
        assert torch.equal(log_probs(one.model, batch), log_probs(model, batch))
    if words:
        saved = [list(one.words) for one in translator.vocabularies]
        assert saved == content["vocabularies"]
    else:
        assert (tmp_path / "best" / "tokenizer.json").read_text() == content["vocabularies"][0]
        shared = translator.model.src_embed[0].lut.weight
        assert translator.model.generator.proj.weight is shared


def test_damage_to_a_checkpoint_is_noticed(tmp_path):
    path, rng = tmp_path / "run" / "last.pt", random.Random(0)
    write_checkpoint(path, first_edition(words=True)[0])
    good = path.read_bytes()
    for at_byte in [30, len(good) - 1, *(rng.randrange(100, len(good)) for _ in range(20))]:
        for bad in (good[:at_byte], good[:at_byte] + b"?!" + good[at_byte + 2 :]):
            path.write_bytes(bad)
            with pytest.raises(
                ValueError, match=r"last\.pt cannot .* damaged, its checksum differs"
            ):
                convert.convert(path, tmp_path / "model")


def test_a_checkpoint_that_lacks_something(tmp_path):
    content, _ = first_edition(words=True)
    for lacking in ("config", "model", "vocabularies"):
        less = {name: value for name, value in content.items() if name != lacking}
        write_checkpoint(tmp_path / "last.pt", less)
        with pytest.raises(ValueError, match=rf"last\.pt cannot .*lacks '{lacking}'"):
            convert.convert(tmp_path / "last.pt", tmp_path / "model")
    write_checkpoint(tmp_path / "last.pt", content | {"config": content["config"] | {"d_ff": 64}})
    with pytest.raises(ValueError, match=r"(?s)last\.pt cannot .*size mismatch"):
        convert.convert(tmp_path / "last.pt", tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.fixture
def exported(tmp_path) -> Path:
    """A folder of the first edition, in int8."""
    content, model = first_edition(words=False)
    write_exported(tmp_path / "old", content, int8.quantise_all(dict(model.named_parameters())))
    return tmp_path / "old"


def test_an_exported_folder_keeps_its_bytes(exported, tmp_path):
    translator = convert.convert(exported, tmp_path / "new")
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "new" / name).read_bytes() == (exported / name).read_bytes()
    assert translator.name == "toy, int8" and translator.corpus == "some captions"
    with pytest.raises(ValueError, match="is it one of this already"):
        convert.convert(tmp_path / "new", tmp_path / "newer")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_damage_to_an_exported_folder_is_noticed(exported, tmp_path, name):
    text = (exported / name).read_bytes()
    (exported / name).write_bytes(text.replace(b'"h": 2', b'"h": 4').replace(b"norm", b"nurm"))
    with pytest.raises(
        ValueError, match=rf"{re.escape(str(exported))} cannot .*{re.escape(name)} is damaged"
    ):
        convert.convert(exported, tmp_path / "new")
    (exported / name).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(name)):
        convert.convert(exported, tmp_path / "new")


# int8 -------------------------------------------------------------------------------------------


def test_rounding_misses_by_half_a_step_of_the_row_at_most():
    matrix = torch.randn(5, 300) * torch.tensor([1e-6, 0.01, 1.0, 1000.0, 0.0]).unsqueeze(1)
    before = matrix.clone()
    numbers, steps = int8.quantise(matrix)
    error = (at.dequantise(numbers, steps) - matrix).abs().amax(dim=1)
    assert numbers.dtype == torch.int8 and steps.shape == (5,) and torch.equal(matrix, before)
    assert (error <= 0.5001 * steps).all()
    assert numbers.abs().amax(dim=1).tolist() == [127, 127, 127, 127, 0]


def test_a_row_without_weight_is_divided_by_something():
    """0 / 0 is no number, and what it becomes in int8 depends on the machine."""
    numbers, steps = int8.quantise(torch.tensor([[0.0, 0.0], [1e-43, -1e-43], [1.0, 2.0]]))
    assert (steps > 0).all() and numbers[:2].eq(0).all()


@pytest.mark.parametrize("words", [True, False], ids=["words", "pieces"])
def test_a_model_in_int8(words, tmp_path):
    content, model = first_edition(words)
    write_checkpoint(tmp_path / "toy" / "last.pt", content)
    convert.convert(tmp_path / "toy" / "last.pt", tmp_path / "whole")
    rounded = int8.round_model(tmp_path / "whole", tmp_path / "rounded")
    state = rounded.model.state_dict()
    for name, value in model.state_dict().items():
        half_a_step = value.abs().amax(-1, keepdim=True) / 254
        limit = 1.0001 * half_a_step if value.dim() == 2 else torch.tensor(0.0)
        assert ((state[name] - value).abs() <= limit).all(), name
    stored = load_file(tmp_path / "rounded" / "model.safetensors")
    assert len([n for n in stored if "lut" in n or "proj.weight" in n]) == (6 if words else 2)
    for name, value in stored.items():
        assert (value.dtype == torch.int8) == (value.dim() == 2), name
    assert rounded.name == "toy, last, int8"
    kept = "words.json" if words else "tokenizer.json"
    pair = [(tmp_path / folder / kept).read_bytes() for folder in ("whole", "rounded")]
    assert pair[0] == pair[1]

    run = tmp_path / "run"  # the same once more, by way of a run; what is rounded stays
    run.mkdir()
    (tmp_path / "rounded").rename(run / "epoch-003")
    (run / "summary.json").write_text(json.dumps({"status": "finished", "best": "epoch-003"}))
    int8.round_model(run, tmp_path / "again")
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (run / "epoch-003" / path.name).read_bytes()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_refused(bad, tmp_path, capsys):
    content, _ = first_edition(words=True)
    name = "encoder.layers.0.feed_forward.widen.weight"
    content["model"][name][3, 2] = bad
    write_checkpoint(tmp_path / "last.pt", content)
    convert.convert(tmp_path / "last.pt", tmp_path / "whole")
    assert int8.main([str(tmp_path / "whole"), str(tmp_path / "none")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {name} holds NaN or infinity") and error.count("\n") == 1
    assert not (tmp_path / "none").exists()


# The command line -------------------------------------------------------------------------------


def test_both_programs(exported, tmp_path, capsys):
    new, smaller = str(tmp_path / "new"), str(tmp_path / "smaller")
    assert convert.main([str(exported), new]) == 0
    assert capsys.readouterr().out == f"{new}: model toy, int8, trained on some captions\n"
    assert int8.main([new, smaller]) == 0
    assert f"{smaller}: model toy, int8, 0.0 MB" in capsys.readouterr().out
    for program in (convert, int8):
        with pytest.raises(SystemExit):
            program.main([new, smaller])
        assert "holds a model already: name another folder" in capsys.readouterr().err
        nowhere = str(tmp_path / "nowhere")
        assert program.main([nowhere, str(tmp_path / "third")]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ") and nowhere in error
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text('{"status": "stopped"}')
    assert int8.main([str(tmp_path / "run"), str(tmp_path / "third")]) == 1
    assert "'best'" in capsys.readouterr().err
