"""Whatever a model is made of, it survives: every part, ours or a reader's, goes every way."""

import copy
import dataclasses
import json
import re
import shutil
import warnings

import my_parts
import pytest
import torch
from conftest import PROJECT, assert_same_run, options_of, train_one_epoch

import the_annotated_transformer as at

MINE = [my_parts.SharpAttention, my_parts.BiasedByDistance, my_parts.Smooth]
ROTARY = {"positions": "NoPositions"}
WAYS = {  # settings that differ from the recipe's
    "plain": {},
    "rotary": ROTARY | {"attention": "RotaryAttention"},
    "grouped": {"attention": "GroupedAttention(groups=2)"},
    "rotary and grouped": ROTARY | {"attention": "RotaryGroupedAttention(groups=2)"},
    "an attend of its own": {"attention": "SharpAttention"},
    "a bias by distance": {"attention": "BiasedByDistance", "positions": "NoPositions"},
    "SwiGLU": {"feed_forward": "SwiGLU"},
    "a feed-forward of its own": {"feed_forward": "Smooth(sharpness=2.5)"},
    "RMSNorm": {"norm": "RMSNorm"},
    "learnt positions": {"positions": "LearntPositions"},
    "no positions": {"positions": "NoPositions"},
    "no biases": {"bias": False},
    "all of today": ROTARY
    | {"attention": "RotaryGroupedAttention(groups=2)", "feed_forward": "SwiGLU"}
    | {"norm": "RMSNorm", "bias": False},
}
BOTH_ORDERS = [
    pytest.param(way | {"norm_first": norm_first}, id=f"{name}, norm {order}")
    for name, way in WAYS.items()
    for norm_first, order in ((True, "first"), (False, "after"))
]
SIZES = {"N": 2, "d_model": 16, "d_ff": 32, "h": 4, "dropout": 0.1, "max_len": 32}


@pytest.fixture(params=BOTH_ORDERS)
def way(request) -> dict:
    return request.param


def made(way: dict, **more) -> torch.nn.Module:
    """A model of 11 source and 13 target symbols, of which no weight is zero or one."""
    torch.manual_seed(1)
    arguments = {"src_vocab": 11, "tgt_vocab": 13} | SIZES | way | more
    model = at.new_from("make_model", arguments, MINE).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def batch() -> at.Batch:
    """Three sentences of different lengths, and as many targets."""
    torch.manual_seed(2)
    src = at.pad_ids([[4, 5, 6, 7, 1], [9, 4, 1], [10, 8, 8, 1]])
    return at.Batch(src, torch.randint(4, 13, (3, 7)))


def silent(function, *arguments):
    """What a function returns that must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*arguments)


# From training to a translation -----------------------------------------------------------------


def test_plain_and_cached_decoding_agree_step_by_step(way):
    model = made(way)
    given = batch()
    memory = model.encode(given.src, given.src_mask)
    states = model.decode(memory, given.src_mask, given.tgt, at.subsequent_mask(6))
    stepwise = at.in_steps(model, memory, given.src_mask, given.tgt)
    torch.testing.assert_close(stepwise, model.generator(states), rtol=1e-4, atol=1e-4)


def test_a_beam_of_one_is_greedy_and_a_wide_one_needs_no_cache(way, monkeypatch):
    model = made(way)
    given = batch()
    model.generator.proj.weight.data *= 2
    arguments = model, given.src, given.src_mask, 12, at.START
    greedy = at.greedy_decode(*arguments)
    assert torch.equal(silent(at.greedy_search, *arguments), greedy)
    pointers = []
    expand = at.expand

    def recorded(*inputs):
        grown, backpointers = expand(*inputs)
        pointers.append(backpointers)
        return grown, backpointers

    monkeypatch.setattr(at, "expand", recorded)
    found = silent(at.beam_search, *arguments, 4, 0.6)
    monkeypatch.setattr(at, "is_true", lambda *_: False)
    with pytest.warns(UserWarning, match="with a cache it gives something else"):
        plain = at.beam_search(*arguments, 4, 0.6)
    assert torch.equal(plain, found[:, : plain.size(1)])
    assert found[:, plain.size(1) :].eq(at.PAD).all()
    pointers = torch.cat(pointers)
    assert not torch.equal(pointers, torch.arange(4).expand_as(pointers)), "they change places"


def test_a_step_of_training_changes_every_weight_in_plain_and_fast_form_alike(way):
    given = batch()
    updated = []
    for fast in (False, True):
        model = made(way, dropout=0.0)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        criterion = at.LabelSmoothing(13, at.PAD, 0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        if fast:
            loss_model = at.ModelWithLoss(at.make_fast(model), criterion)
            at.train_step(loss_model, [given], optimizer, schedule)
        else:
            loss_compute = at.SimpleLossCompute(model.generator, criterion)
            at.run_epoch([given], model, loss_compute, optimizer, schedule)
        updated.append(dict(model.named_parameters()))
        for name, p in model.named_parameters():
            noise = "linears.1.bias" in name  # a key's bias changes no weight
            assert noise or not torch.equal(p, before[name]), name
    for name, p in updated[0].items():
        torch.testing.assert_close(updated[1][name], p, rtol=1e-4, atol=1e-5, msg=name)


def test_fast_forms_decode_alike_and_a_class_without_one_stays(way):
    plain = made(way)
    given = batch()
    fast = at.make_fast(copy.deepcopy(plain))
    for ours, theirs in zip(plain.modules(), fast.modules(), strict=True):
        expected = at.FASTER.get(type(ours), type(ours))
        assert type(theirs) is expected
    arguments = given.src, given.src_mask, 12, at.START
    assert torch.equal(at.beam_search(fast, *arguments), at.beam_search(plain, *arguments))


def test_maps_are_those_of_the_part(way):
    model = made(way)
    given = batch()
    plain = at.recorded_attention(model, given)
    result = {w.shape[1:3] for w in plain.values()}
    assert result == {(2, 4)}, "layers and heads"
    again = at.recorded_attention(at.make_fast(model), given)
    for kind, weights in plain.items():
        torch.testing.assert_close(again[kind], weights, rtol=1e-4, atol=1e-5)


# Files and the command line ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def vocabularies() -> tuple:
    return at.learn_subwords(at.read_builtin(), 60)


def translator_of(model: torch.nn.Module, vocabularies: tuple) -> at.Translator:
    return at.Translator("toy", model, at.BUILTIN, ("de", "en"), vocabularies)


def test_a_folder_gives_back_the_same_model(way, vocabularies, tmp_path):
    model = made(way, src_vocab=60, tgt_vocab=60, share_embeddings=True)
    at.save_model(translator_of(at.make_fast(copy.deepcopy(model)), vocabularies), tmp_path)
    back = at.load_trained_model(tmp_path, torch.device("cpu"), MINE).model
    assert at.with_names(back.arguments) == at.with_names(model.arguments)
    result = list(map(type, back.modules()))
    expected = list(map(type, model.modules()))
    assert result == expected
    given = batch()
    inputs = given.src, given.tgt, given.src_mask, given.tgt_mask
    assert torch.equal(back.generator(back(*inputs)), model.generator(model(*inputs)))


PARTS_FILE = ["--parts", str(PROJECT / "tests" / "my_parts.py")]
TRAINED = [name for name in WAYS if name not in ("no positions", "learnt positions")]


@pytest.mark.parametrize("name", TRAINED)
def test_a_run_is_stopped_goes_on_translates_and_is_scored(name, small_config, tmp_path, capsys):
    way = WAYS[name] | {"norm_first": len(name) % 2 == 0}
    config = dataclasses.replace(small_config, d_model=16, h=4, **way)
    at.train_model(config, tmp_path / "whole" / "run", parts=MINE)
    run = tmp_path / "run"
    train_one_epoch(config, run, MINE)
    train = ["train", "--folder", str(run), *options_of(config)]
    assert at.main([*train, *PARTS_FILE]) == 0
    assert_same_run(run, tmp_path / "whole" / "run")
    assert "finished" in (run / "run.json").read_text()
    for command in (["translate", "Ein Mann lacht."], ["evaluate", "--split", "val"]):
        result = at.main([*command, "--model", str(run), *PARTS_FILE])
        assert result == 0
    said = capsys.readouterr()
    assert "val: BLEU" in said.out
    assert "without a cache" not in said.err
    if "Sharp" in str(way) or "Biased" in str(way) or "Smooth" in str(way):
        mine = re.match(r"\w+", way.get("feed_forward") or way["attention"])[0]
        for command in (train, ["translate", "Hund", "--model", str(run)]):
            assert at.main(command) == 1
            error = capsys.readouterr().err
            assert f"{mine} is no part of this text" in error
            assert "--parts FILE.py" in error
            assert "git checkout" not in error
        with pytest.raises(ValueError, match=rf"{mine} is no part .*parts=\[{mine}\] or --parts"):
            at.load_trained_model(run)


def test_older_folders_still_load(tmp_path):
    """Those without names of classes, as 7b5a3ab wrote them."""
    folder = tmp_path / "older"
    shutil.copytree(PROJECT / "pretrained", folder)
    about = json.loads((folder / "config.json").read_bytes())
    sizes = {name: size for name, size in about["model"].items() if name not in at.PARTS}
    del about["sha256"], about["kind"], about["data"], about["text"], sizes["bias"]
    about["model"] = sizes
    at.write_summed(folder / "config.json", about, ["model.safetensors", "tokenizer.json"])
    model = at.load_trained_model(folder, torch.device("cpu")).model
    result = at.with_names(model.arguments).items()
    assert result >= sizes.items()
    now = at.load_trained_model("pretrained", torch.device("cpu")).model
    assert model.state_dict().keys() == now.state_dict().keys()


def test_a_folder_is_read_before_part_10_has_come(tmp_path, vocabularies):
    """In a notebook the classes of Part 10 come after the cell that reads the shipped model."""
    model = made(WAYS["RMSNorm"], src_vocab=60, tgt_vocab=60)
    at.save_model(translator_of(model, vocabularies), tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RotaryAttention", "GroupedAttention", "SwiGLU", "LearntPositions"):
            patch.delattr(at, name)
        at.load_trained_model(tmp_path)
        patch.delattr(at, "RMSNorm")
        with pytest.raises(ValueError, match="RMSNorm is no part of this text"):
            at.load_trained_model(tmp_path)


# A language model --------------------------------------------------------------------------------


def test_a_language_model_of_every_part_is_sampled_saved_and_loaded(way, vocabularies, tmp_path):
    torch.manual_seed(1)
    arguments = {"vocab": 60} | SIZES | way
    model = at.new_from("LanguageModel", arguments, MINE).eval()
    ids = torch.randint(4, 60, (1, 8))
    states = model(None, ids, None, at.subsequent_mask(8))
    stepwise = at.in_steps(model, None, None, ids)
    torch.testing.assert_close(stepwise, model.generator(states), rtol=1e-4, atol=1e-4)
    english = (vocabularies[1], vocabularies[1])
    at.save_model(at.Translator("toy", model, at.BUILTIN, ("en", "en"), english), tmp_path)
    back = at.load_trained_model(tmp_path, torch.device("cpu"), MINE).model
    assert torch.equal(back(None, ids, None, at.subsequent_mask(8)), states)
    drawn = []
    for each in (model, back):
        torch.manual_seed(5)
        drawn.append(silent(at.sample, each, [at.START, 5], 20))
    assert drawn[0] == drawn[1]


def test_a_language_model_does_not_translate(vocabularies, tmp_path, capsys):
    model = at.LanguageModel(60, **SIZES)
    at.save_model(at.Translator("toy", model, at.BUILTIN, ("en", "en"), vocabularies), tmp_path)
    result = at.main(["translate", "A dog.", "--model", str(tmp_path)])
    assert result == 1
    assert "is a language model: it translates nothing" in capsys.readouterr().err


# What a cache or a folder cannot know ------------------------------------------------------------


class Reversed(at.DecoderLayer):
    """The feed-forward network first."""

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.sublayer[2](x, self.feed_forward)
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        return self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))


class LooksBack(at.PositionwiseFeedForward):
    """Takes the position before into account, as a causal convolution does."""

    def forward(self, x):
        before = torch.nn.functional.pad(x[:, :-1], (0, 0, 1, 0))
        return super().forward(x + before)


class ForgetsItsPlace(at.MultiHeadedAttention):
    """A window of ten, and `at` is not asked: right with a cache for the first steps only."""

    def attend(self, query, key, value, mask, at):
        places = torch.arange(query.size(-2))  # with a cache always 0
        near = (places.unsqueeze(1) - torch.arange(key.size(-2))).abs() <= 10
        return super().attend(query, key, value, mask & near, at)


class NoPlaces(torch.nn.Identity):
    """Positions that do not take `at`."""


def hooked(model):
    attn = model.decoder.layers[0].self_attn
    attn.register_forward_hook(lambda module, inputs, output: 2 * output)


def own_layer(model):
    model.decoder.layers[1].__class__ = Reversed


def own_forward(model):
    attn = model.decoder.layers[1].src_attn
    plain = attn.forward
    attn.forward = lambda *inputs: plain(*inputs) * 3


def own_decode(model):
    plain = model.decode
    model.decode = lambda *inputs: 1.5 * plain(*inputs)


def looks_back(model):
    for layer in model.decoder.layers:
        layer.feed_forward.__class__ = LooksBack


def forgets_its_place(model):
    for layer in model.decoder.layers:
        layer.self_attn.__class__ = ForgetsItsPlace


def no_places(model):
    model.tgt_embed[1] = NoPlaces()


CHANGES = [hooked, own_layer, own_forward, own_decode, looks_back, forgets_its_place, no_places]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("searched_before", [False, True])
def test_what_a_cache_cannot_know_is_decoded_plainly_and_said_so(change, searched_before):
    model = made({})
    given = batch()
    model.generator.proj.weight.data *= 2
    arguments = model, given.src, given.src_mask, 30, at.START, 1, 0.6, None
    before = silent(at.beam_search, *arguments) if searched_before else None
    change(model)
    with pytest.warns(UserWarning, match="decoded without a cache, which takes longer: "):
        found = at.beam_search(*arguments)
    assert torch.equal(found, at.greedy_decode(*arguments[:5], None))
    assert before is None or not torch.equal(found, before), "the change makes a difference"


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_folder_cannot_hold_is_refused(change, vocabularies, tmp_path):
    model = made({}, src_vocab=60, tgt_vocab=60)
    change(model)
    with pytest.raises(
        ValueError, match=r"alone do not make it again, it computes something else: hand cl"
    ):
        at.save_model(translator_of(model, vocabularies), tmp_path)
    assert not list(tmp_path.iterdir())


def no_second_layer(model):
    del model.decoder.layers[1]


def tied_by_hand(model):
    model.generator.proj.weight = model.tgt_embed[0].lut.weight


def another_network(model):
    model.encoder.layers[0].feed_forward = at.SwiGLU(16, 32, 0.0)


def another_output(model):
    model.generator = torch.nn.Linear(16, 60)


def no_arguments(model):
    del model.arguments


@pytest.mark.parametrize(
    "change", [no_second_layer, tied_by_hand, another_network, another_output, no_arguments]
)
def test_what_a_folder_would_lose_is_refused(change, vocabularies, tmp_path):
    """What is at fault is named, and the way out."""
    model = made({}, src_vocab=60, tgt_vocab=60)
    change(model)
    with pytest.raises(ValueError, match=r"(layers\.|generator|proj|arguments).*: hand classes"):
        at.save_model(translator_of(model, vocabularies), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [59, 61])
def test_vocabularies_of_other_sizes_are_not_saved(size, vocabularies, tmp_path):
    model = made({}, src_vocab=60, tgt_vocab=size)
    with pytest.raises(ValueError, match=f"60 tokens do not fit a matrix of {size} rows"):
        at.save_model(translator_of(model, vocabularies), tmp_path)
    assert not list(tmp_path.iterdir())


def test_weights_that_are_recorded_are_those_of_what_was_found():
    """The plain pass at the end of a search is the one that is recorded."""
    model = made({})
    given = batch()
    attn = model.decoder.layers[0].self_attn
    attn.record = []
    rows = silent(at.greedy_search, model, given.src, given.src_mask, 6, at.START)
    states = model(given.src, rows[:, :-1], given.src_mask, at.subsequent_mask(rows.size(1) - 1))
    assert states.isfinite().all()
    searched, again = attn.record
    torch.testing.assert_close(searched, again)


def test_a_fault_that_only_shows_after_training_is_found():

    class Grows(at.PositionwiseFeedForward):
        def __init__(self, d_model, d_ff, dropout):
            super().__init__(d_model, d_ff, dropout)
            self.gate = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return super().forward(x) + self.gate * x.cumsum(dim=1)

    torch.manual_seed(0)
    model = at.make_model(11, 13, **SIZES, feed_forward=Grows).eval()
    given = batch()
    arguments = model, given.src, given.src_mask, 9, at.START
    silent(at.greedy_search, *arguments)
    with torch.no_grad():
        for layer in model.decoder.layers:
            layer.feed_forward.gate += 1
    with pytest.warns(UserWarning, match="with a cache it gives something else"):
        at.greedy_search(*arguments)


def test_parts_without_a_name_are_refused(vocabularies, tmp_path):
    class RotaryAttention(at.MultiHeadedAttention):
        """A name of ours."""

    for attention, message in (
        (RotaryAttention, "RotaryAttention is a class of this text: give yours another name"),
        (lambda **sizes: at.MultiHeadedAttention(**sizes), "has no name: hand in a class"),
    ):
        model = at.make_model(60, 60, **SIZES, attention=attention)
        with pytest.raises(ValueError, match=message):
            at.save_model(translator_of(model, vocabularies), tmp_path)


def test_names_that_mean_nothing_are_refused(tmp_path):
    for text, message in (
        ("Mine", "Mine is no part of this text"),
        ("os.system", "os.system is no part"),
        ("save_model", "save_model is no part"),
        ("GroupedAttention(groups=", "is not a class with arguments"),
        ("GroupedAttention(2)", "is not a class with arguments"),
        ("GroupedAttention(groups=print())", "is not a class with arguments"),
        ("GroupedAttention(groups=3)", r"h \(4\) must be divisible by groups \(3\)"),
        ("GroupedAttention", "no such model can be made: .*groups"),
        ("LayerNorm", "no such model can be made"),
        ("MultiHeadedAttention(dropout=0.5)", "dropout of attention is for make_model to say"),
    ):
        with pytest.raises(ValueError, match=message):
            made({"attention": text})


class StartsSmall(at.PositionwiseFeedForward):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.scale = torch.nn.Parameter(torch.empty(8))
        self.reset_parameters()

    def reset_parameters(self):
        torch.nn.init.normal_(self.scale)
        torch.nn.init.zeros_(self.narrow.bias)


def test_a_part_has_the_last_word_on_its_initial_values():
    first, second = at.clones(StartsSmall(8, 16, 0.1), 2)
    assert not torch.equal(first.scale, second.scale)
    assert not first.narrow.bias.any() and not second.narrow.bias.any()


def test_a_file_of_parts_that_is_none(tmp_path, capsys):
    (tmp_path / "empty.py").write_text("a = 1\n")
    (tmp_path / "text.txt").write_text("import math\n")
    for name, message in (
        ("empty.py", "defines no class"),
        ("text.txt", "defines no class"),
        ("none.py", "No such file"),
    ):
        given = ["translate", "Hund", "--parts", str(tmp_path / name)]
        assert at.main(given) == 1
        assert message in capsys.readouterr().err


# Two settings that the recipe does without --------------------------------------------------------


def test_a_long_gradient_is_shortened_and_a_short_one_is_not():
    given = batch()
    lengths = {}
    for clip in (None, 1e-3, 1e3):
        model = made({}, dropout=0.0)
        start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        loss_model = at.ModelWithLoss(model, at.LabelSmoothing(13, at.PAD, 0.1))
        descent = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.ConstantLR(descent, 1.0)
        step = at.train_step(loss_model, [given], descent, schedule, clip=clip)
        moved = torch.nn.utils.parameters_to_vector(model.parameters()) - start
        lengths[clip] = moved.norm().item(), step.grad_norm
    expected = pytest.approx(1e-3, rel=1e-2)
    assert lengths[1e-3][0] == expected
    assert lengths[None] == lengths[1e3] == pytest.approx(lengths[None][::-1], rel=1e-3)
    assert lengths[1e-3][1] == lengths[None][1], "the norm is told as it was"


def test_weight_decay_shrinks_matrices_and_nothing_else():
    model = made({})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    adam = at.adamw(model.parameters(), weight_decay=0.5, lr=0.1)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    adam.step()
    for name, p in model.named_parameters():
        share = 0.95 if p.dim() > 1 else 1.0
        torch.testing.assert_close(p, share * before[name], msg=name)
