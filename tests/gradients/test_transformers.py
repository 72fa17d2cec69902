"""Models of transformers and PEFT, as docs/how-to/transformers.md writes them: small, random, nothing downloaded."""

import json
import os
import re
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from fedprivacy.commands.app import app
from fedprivacy.gradients import FlatClipping, GradientEngine
from fedprivacy.tasks import ShardSource, load_task
from tests.gradients.oracle import expected_sum, records_gradients, some_clipping_norm
from tests.terminal import CliRunner

os.environ["HF_HUB_OFFLINE"] = "1"

pytestmark = pytest.mark.exhaustive  # to import the library alone takes seconds

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "transformers.md"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "nurse", "was", "kind", "and", "food", "cold", "again"]
SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
TASKS = ("reviews.py:Reviews", "reviews.py:Adapted", "notes.py:Notes")


@cache
def huggingface():
    """The library, imported by who needs it: each test process would spend seconds on it to collect its tests."""
    pytest.importorskip("peft")
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the how-to expects, and its own two as they are written."""
    made = tmp_path_factory.mktemp("transformers")
    for name, code in zip(
        ("reviews", "notes"), re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.S), strict=True
    ):
        (made / f"{name}.py").write_text(code)
    torch.manual_seed(0)
    huggingface().BertModel(huggingface().BertConfig(**SMALL, max_position_embeddings=32)).save_pretrained(
        made / "bert"
    )
    (made / "bert" / "vocab.txt").write_text("\n".join(WORDS))
    huggingface().BertTokenizerFast(str(made / "bert" / "vocab.txt")).save_pretrained(made / "bert")
    gpt2 = huggingface().GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    huggingface().GPT2LMHeadModel(gpt2).save_pretrained(made / "gpt2")
    texts = [" ".join(WORDS[4 : 5 + i % 8]) for i in range(40)]
    table = pd.DataFrame({"site": [i % 2 for i in range(40)], "text": texts, "label": [i // 2 % 2 for i in range(40)]})
    table.to_csv(made / "reviews.csv")
    generator = torch.Generator().manual_seed(0)
    for site in range(10):
        (made / f"site-{site}").mkdir()
        tokens = (torch.arange(13) < torch.randint(2, 14, (20, 1), generator=generator)).long()
        ids = torch.randint(50, (20, 13), generator=generator) * tokens
        torch.save({"input_ids": ids, "attention_mask": tokens}, made / f"site-{site}" / "tokens.pt")
    return made


@pytest.fixture(scope="module", params=TASKS)
def prepared(request, folder):
    """A task's engine as it is chosen for it, and a shard that has records of several lengths."""
    task = load_task(str(folder / request.param))
    torch.manual_seed(0)
    model = task.model()
    shard = task.shard(ShardSource(partition_id=0, num_partitions=2))
    with torch.no_grad():  # an adapter starts at zero, which would hide what comes before
        for p in filter(lambda p: p.requires_grad, model.parameters()):
            p.add_(0.02 * torch.randn_like(p))
    engine = GradientEngine(model, task.loss)
    engine.prepare(shard.inputs, shard.targets)
    return engine, task.loss, shard


def test_book_keeping_has_the_sum_of_the_loop_in_float64(prepared):
    engine, loss, shard = prepared
    assert engine.method.startswith("book-keeping") and engine.sizes[0] >= 32
    assert engine.obstacle is None or "rows alike" in engine.obstacle.what  # which is the processor's fault
    gradients = records_gradients(engine.model, loss, shard.inputs, shard.targets)
    norm = some_clipping_norm(gradients, FlatClipping())
    expected = expected_sum(gradients, FlatClipping(), norm)
    found = engine.clipped_sum(shard.inputs, shard.targets, norm)
    assert (found - expected).norm() < 1e-5 * norm  # where records differ in their targets, sums cancel


def test_what_stands_under_padding_changes_no_gradient(prepared):
    engine, _, shard = prepared
    changed = shard.inputs.clone()
    if changed.dim() == 3:
        changed[:, 0][changed[:, 1] == 0] = 7
    else:  # behind a token without a next one
        changed[:, 1:][shard.targets[:, :-1] == -100] = 7
    assert not torch.equal(changed, shard.inputs)
    sums = [engine.clipped_sum(inputs, shard.targets, 0.5) for inputs in (changed, shard.inputs)]
    assert (sums[0] - sums[1]).norm() < 1e-5


def test_the_commands_of_the_how_to_run_as_written(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (commands,) = re.findall(r"```sh\n(.*?)```", HOW_TO.read_text(), re.S)
    for command in commands.splitlines():
        done = CliRunner().invoke(app, [*command.split()[1:], "--json"])
        assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary["rounds"] == 2 and len(summary["clients"]) == 2
    doctor = CliRunner().invoke(app, ["doctor", "notes.py:Notes", "--json"])
    assert json.loads(doctor.stdout)["method"] == "book-keeping"


class TwoAxes(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, records):
        return self.model(input_ids=records[:, 0], attention_mask=records[:, 1]).logits


def summed(outputs, targets):
    return (outputs.flatten(1) * (targets[:, None] + 1)).logsumexp(1)


RECORDS = torch.ones(3, 2, 12, dtype=torch.int64), torch.arange(3)


def causal(implementation):
    no_dropout = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    llama = huggingface().LlamaConfig(**SMALL, num_key_value_heads=1, attn_implementation=implementation)
    gpt2 = huggingface().GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=0, **no_dropout,
        attn_implementation=implementation,
    )  # fmt: skip
    return huggingface().LlamaForCausalLM(llama), huggingface().GPT2LMHeadModel(gpt2)


def test_a_mask_that_is_looked_into_is_named_with_its_line_and_a_remedy_that_is_one():
    for model in causal("sdpa"):
        engine = GradientEngine(TwoAxes(model).train(), summed)
        engine.prepare(*RECORDS)
        path, _, line = engine.obstacle.place.rpartition(":")
        assert engine.method == "loop" and path.endswith("transformers/masking_utils.py")
        assert "all(" in Path(path).read_text().splitlines()[int(line) - 1]
        assert "attn_implementation='eager'" in engine.obstacle.remedy and HOW_TO.name in engine.obstacle.remedy
    for model in causal("eager"):
        engine = GradientEngine(TwoAxes(model).train(), summed)
        engine.prepare(*RECORDS)
        assert engine.method.startswith("book-keeping")
