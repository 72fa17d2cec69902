"""Try families of torchvision and transformers: the method that computes their gradients, and a private step's time.

    python -m benchmarks.families [--library torchvision] [--only resnet18] [--eval] [--batch 16] [--json]

Install the libraries yourself (`pip install torchvision transformers`): fedprivacy needs neither. Weights are random,
and records made up. Models of torchvision come in `train()` and are mended by `made_private`; those of transformers are
as `from_pretrained` returns them, in `eval()`. A step is a clipped sum of the batch with noise; its time is given in
those of the same step of the same model without privacy, taken by turns on one thread.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.gradient_models import Problem
from benchmarks.gradient_steps import OurStep, nonprivate_step
from benchmarks.measure import interleaved, time_ratio
from fedprivacy.gradients import check_model, check_on_blank, made_private
from fedprivacy.gradients.methods import first_line
from fedprivacy.gradients.structure import replacements

CLASSES, WORDS, LENGTH = 10, 100, 32

TORCHVISION: dict[str, tuple[int, ...]] = {
    "alexnet": (64,),
    "convnext_tiny": (32,),
    "densenet121": (32,),
    "efficientnet_b0": (32,),
    "efficientnet_v2_s": (32,),
    "googlenet": (64,),
    "inception_v3": (96,),
    "maxvit_t": (224,),
    "mnasnet0_5": (32,),
    "mobilenet_v2": (32,),
    "mobilenet_v3_small": (32,),
    "regnet_y_400mf": (32,),
    "resnet18": (32, 64, 224),
    "resnet50": (32, 64),
    "resnext50_32x4d": (32,),
    "shufflenet_v2_x0_5": (32,),
    "squeezenet1_1": (32,),
    "swin_t": (32,),
    "swin_v2_t": (32,),
    "vgg11": (32,),
    "vgg11_bn": (32,),
    "vit_b_32": (64,),
    "wide_resnet50_2": (32,),
}
"""One model of each family, and numbers of pixels. VGG, of 129 million parameters, needs 11 GB of memory."""

_OPTIONS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"aux_logits": False, "init_weights": False},
    "vit_b_32": {"image_size": 64},
}

_SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
}

TEXTS = ("albert", "bert", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta")
"""Encoders, with a head for classes."""

CAUSAL = ("bloom", "gemma", "gpt2", "gpt_neox", "llama", "mistral", "opt", "phi", "qwen2", "qwen3")
"""Decoders, which predict the next word."""

_STAGES: dict[str, Any] = {"depths": [1, 1], "hidden_sizes": [16, 32], "num_stages": 2}

IMAGES: dict[str, dict[str, Any]] = {
    "beit": _SMALL,
    "dinov2": _SMALL,
    "vit": _SMALL,
    "convnext": _STAGES,
    "mobilenet_v2": {"depth_multiplier": 0.35},
    "resnet": _STAGES | {"embedding_size": 16},
}
"""Models of images of 32 x 32 pixels, with their sizes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model.

    Attributes:
        model: its name.
        size: pixels or words of a record.
        method: name of the method that computes its gradients, or the reason why it is refused.
        replaced: what was replaced, or the mode that makes it unnecessary.
        ratio: time of a private step in those of one without privacy; None if it is refused.
    """

    model: str
    size: str
    method: str
    replaced: str
    ratio: float | None

    def __str__(self) -> str:
        times = "" if self.ratio is None else f"{self.ratio:.1f}"
        return f"| `{self.model}` | {self.size} | {self.method} | {self.replaced} | {times} |"


class Logits(nn.Module):
    """A model of transformers as one that takes a tensor and returns one: a causal model's logits are averaged."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, records: Tensor) -> Tensor:
        """Records [batch, ...] to logits [batch, classes]."""
        logits: Tensor = self.model(records).logits
        return logits.mean(1) if logits.dim() == 3 else logits


Made = tuple[str, str, Callable[[], nn.Module], Tensor]
"""Name, size of a record, function that makes the model, and a batch of records."""


def of_torchvision(batch: int) -> Iterator[Made]:
    """Yield the models of torchvision."""
    models = import_module("torchvision.models")
    for name, sizes in TORCHVISION.items():
        for pixels in sizes:
            make = partial(models.get_model, name, weights=None, num_classes=CLASSES, **_OPTIONS.get(name, {}))
            yield name, f"{pixels} px", make, torch.rand(batch, 3, pixels, pixels)


def of_transformers(batch: int) -> Iterator[Made]:
    """Yield the models of transformers, small."""
    library = import_module("transformers")
    ids, images = torch.randint(2, WORDS, (batch, LENGTH)), torch.rand(batch, 3, 32, 32)
    words = _SMALL | {"vocab_size": WORDS}
    texts = {"num_labels": CLASSES}
    causal = {"use_cache": False, "attn_implementation": "eager", "bos_token_id": 1, "eos_token_id": 1}

    def make(auto: str, name: str, settings: dict[str, Any]) -> nn.Module:
        config = library.AutoConfig.for_model(name, **settings)
        return Logits(getattr(library, auto).from_config(config))

    for name in TEXTS:
        yield (
            name,
            f"{LENGTH} words",
            partial(make, "AutoModelForSequenceClassification", name, words | texts | {"pad_token_id": 0}),
            ids,
        )
    for name in CAUSAL:
        yield name, f"{LENGTH} words", partial(make, "AutoModelForCausalLM", name, words | causal), ids
    for name, sizes in IMAGES.items():
        settings = sizes | texts | ({"image_size": 32, "patch_size": 8} if sizes is _SMALL else {})
        yield name, "32 px", partial(make, "AutoModelForImageClassification", name, settings), images


LIBRARIES = {"torchvision": of_torchvision, "transformers": of_transformers}


def measured(made: Made, rounds: int, *, frozen: bool) -> Row:
    """Mend a model, or put it into `eval()` if it is `frozen`; ask the engine for its method, and time its steps."""
    name, size, make, inputs = made
    torch.manual_seed(0)
    replaced = ""
    try:
        model = make().train(not frozen)
        mended = made_private(model) if model.training else model
        replaced = "; ".join(replacements(model, mended)) or "nothing"
        replaced += "" if model.training else ", in `eval()`"
        targets = torch.arange(len(inputs)) % CLASSES
        check_model(mended)
        check_on_blank(mended, partial(cross_entropy, reduction="none"), inputs, targets)
        problem = Problem(name, lambda: copy.deepcopy(mended), inputs, targets)
        ours = OurStep(problem)
        times = interleaved({"ours": ours, "bare": nonprivate_step(problem)}, rounds, (), problem.device)
        return Row(name, size, ours.method, replaced, time_ratio(times, "ours", "bare"))
    except Exception as error:
        return Row(name, size, f"refused: {first_line(error)}", replaced, None)


def main() -> None:
    """Measure every family that is asked for, a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=LIBRARIES, default="torchvision")
    parser.add_argument("--eval", action="store_true", help="models of torchvision in eval(), as pretrained ones come")
    parser.add_argument("--only", help="names of models, separated by commas")
    parser.add_argument("--batch", type=int, default=16, help="records of a step")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each step")
    parser.add_argument("--json", action="store_true", help="print JSON, at the end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, frozen = [], options.eval or options.library == "transformers"
    for made in LIBRARIES[options.library](options.batch):
        if options.only is None or made[0] in options.only.split(","):
            rows.append(measured(made, options.rounds, frozen=frozen))
            if not options.json:
                print(rows[-1], flush=True)
            gc.collect()
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
