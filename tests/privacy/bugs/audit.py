"""Bugs of the auditor itself."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug

BUGS = (
    Bug(
        meaning="the audit passes a run whose rounds were charged one step too few",
        place="fedprivacy.audit.gates.claimed_epsilon:_uncharged",
        old="steps < asked and not (steps >= 1 and after.exhausted)",
        new="steps < asked - 1 and not (steps >= 1 and after.exhausted)",
        breaks=guarantees.LEDGER_FIRST,
        tests=("tests/audit/gates/test_finished_run.py::test_a_step_that_was_asked_for_and_not_charged_is_noticed",),
    ),
    Bug(
        meaning="a threshold of Clopper and Pearson's bound is tried on the scores that chose it",
        place="fedprivacy.audit.bounds.clopper_pearson:of_scores",
        old="np.delete(scores, slice(None, None, _CHOOSING))",
        new="scores[::_CHOOSING]",
        breaks=guarantees.FIGURE,
        tests=(
            "tests/audit/bounds/test_clopper_pearson.py"
            "::test_a_threshold_is_tried_on_other_scores_than_it_was_chosen_on[0.5]",
        ),
    ),
    Bug(
        meaning="a threshold of Clopper and Pearson's bound is tried on all scores, with those that chose it",
        place="fedprivacy.audit.bounds.clopper_pearson:of_scores",
        old="np.delete(scores, slice(None, None, _CHOOSING))",
        new="scores",
        breaks=guarantees.FIGURE,
        tests=(
            "tests/audit/bounds/test_clopper_pearson.py::test_scores_that_choose_a_threshold_prove_nothing_themselves",
        ),
    ),
)
