"""An adaptive analyst at the real client: whatever it asks next, neither budget is passed.

`tests/guard/test_questions.py` has analysts of every kind at the guard alone; here, one meets all that is before it.
"""

from collections import Counter

import fedprivacy as fp
from fedprivacy.accounting import pld
from fedprivacy.flower.wire.messages import RECEIPT, RefusalCode
from tests.flower.asked import ANSWERS_ALL, TABLED, ask, code, guard, train

QUESTIONS = [
    [fp.ask.count(where={"age": (40, 41)})],
    [fp.ask.mean("age", 0, 100), fp.ask.count(by={"ward": ["a", "b"]})],
    [fp.ask.median("age", 0, 100, points=8)],
]
EXHAUSTED = {RefusalCode.BUDGET_EXHAUSTED, RefusalCode.QUESTIONS_EXHAUSTED}


def test_no_analyst_passes_either_budget_or_gets_what_it_did_not_pay_for(node):
    """It looks closer after each answer, asks for less after a refusal, and has a model trained in between."""
    node |= ANSWERS_ALL | {"question-epsilon": 1.0}
    noise, answered, trained = 16.0, 0, 0
    for number in range(1, 49):
        if number % 4 == 0:
            reply = train(node, task=TABLED, run_id="one", round=number, steps=6)
            trained += 6 * (RECEIPT in reply.content)
        else:
            questions = QUESTIONS[number % len(QUESTIONS)]
            reply = ask(node, *questions, run_id=f"questions-{number % 2}", round=number, noise_multiplier=noise)
            if RECEIPT in reply.content:
                answered += 1
                noise = max(0.6 * noise, 0.4)
            else:
                noise *= 1.7
        assert RECEIPT in reply.content or code(reply) in EXHAUSTED
    charged, asked = Counter(), Counter()
    for charge in guard(node).charges():
        charged[charge.event] += charge.steps
        asked[charge.event] += charge.steps * charge.attempt.asks
    assert (sum(asked.values()), sum(charged.values())) == (answered, answered + trained)
    assert 0.8 < pld.epsilon(+asked, node["delta"]) <= 1.0
    assert pld.epsilon(+asked, node["delta"]) < pld.epsilon(charged, node["delta"]) <= node["epsilon"]
