"""The how-to for a rule of one's own works as it is written."""

import re
from pathlib import Path
from unittest import mock

import pytest
import torch

from fedprivacy.gradients import GradientEngine, rules

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "own-layer.md"


@pytest.mark.usefixtures("rows_alike")
def test_the_how_to_runs_as_written(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    torch.manual_seed(0)
    records, targets = torch.randn(7, 5, 8), torch.randint(3, (7,))
    with mock.patch.dict(rules._RULES):
        exec(code, names := {})
        assert capsys.readouterr().out == "book-keeping\n"
        rule = mock.Mock(wraps=names["gate_gradients"])
        rules.register_rule(names["Gate"], rule)
        with_rule = total(names, records, targets)
        rows = [len(call.args[1]) for call in rule.call_args_list]
        assert rows[:2] == [3, 5] and rows[-1] == 32  # the two probes, at last the records in a part of 32 rows
    assert rules.rule_for(names["Gate"](8)) is None
    assert torch.allclose(with_rule, total(names, records, targets), atol=1e-6)


def total(names, records, targets):
    def loss(outputs, targets):
        return names["functional"].cross_entropy(outputs, targets, reduction="none")

    return GradientEngine(names["model"], loss).clipped_sum(records, targets, clipping_norm=0.5)
