"""Bugs of private gradients for a loop of one's own."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug

GRADIENTS = "fedprivacy.single.private_gradients:PrivateGradients"
PASSING, KEPT = (f"fedprivacy.single.account:{kind}Account.release" for kind in ("Passing", "Kept"))
TESTS = "tests/single/test_private_gradients.py::"

BUGS = (
    Bug(
        meaning="a gradient of one's own loop exists before it is charged",
        place=PASSING,
        old="""
            self._history[event] = charged = self._history.get(event, 0) + 1
            return compute(Position(1, charged))
        """,
        new="""
            charged = self._history.get(event, 0) + 1
            release = compute(Position(1, charged))
            self._history[event] = charged
            return release
        """,
        breaks=guarantees.OWN_LOOP,
        tests=(f"{TESTS}test_a_step_that_fails_stays_charged_and_the_next_has_other_noise",),
    ),
    Bug(
        meaning="one's own loop takes one step more than its budget",
        place=PASSING,
        old="self.quota(event) < 1",
        new="self.quota(event) < 0",
        breaks=guarantees.BUDGET,
        tests=(f"{TESTS}test_a_step_that_fails_stays_charged_and_the_next_has_other_noise",),
    ),
    Bug(
        meaning="a step that was released, and whose release is gone, is drawn anew under its charge",
        place=KEPT,
        old="self._guard.seal(attempt, _packed(release))",
        new="""
            try:
                self._guard.seal(attempt, _packed(release))
            except SealError:
                return release
        """,
        breaks=guarantees.OWN_LOOP,
        tests=(f"{TESTS}test_a_step_whose_release_is_gone_is_charged_again_with_other_noise",),
    ),
    Bug(
        meaning="an older copy of an account has a released step drawn anew",
        place=KEPT,
        old="self._guard.sealed(attempt) or self._guard.adopted(attempt)",
        new="self._guard.sealed(attempt)",
        breaks=guarantees.REMEMBERED,
        tests=(f"{TESTS}test_an_older_copy_of_the_account_draws_nothing_anew",),
    ),
    Bug(
        meaning="a charge for much noise pays for a step with little",
        place=KEPT,
        old="self._event_of(attempt) != event",
        new="False",
        breaks=guarantees.OWN_LOOP,
        tests=(f"{TESTS}test_a_charge_for_one_event_pays_for_no_other",),
    ),
    Bug(
        meaning="a loss adds a gradient without protection to a private one",
        place="fedprivacy.single.private_gradients:_refuse",
        old="p.grad = None",
        new="return",
        breaks=guarantees.OWN_LOOP,
        tests=(f"{TESTS}test_backward_of_a_loss_is_refused_while_gradients_are_private",),
    ),
    Bug(
        meaning="a gradient is taken of the model as the loop has changed it, layers that mix records included",
        place=f"{GRADIENTS}.__init__",
        old="deepcopy(model)",
        new="model",
        breaks=guarantees.MIXED,
        tests=(
            f"{TESTS}test_what_becomes_of_model_and_records_between_steps_changes_no_gradient[with_batch_statistics]",
        ),
    ),
)
