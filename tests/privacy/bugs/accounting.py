"""Bugs of filters and epsilons."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug

BUGS = (
    Bug(
        meaning="delta is not divided between the filters of one mechanism and of several",
        place="fedprivacy.accounting.filters:FixedThenAdaptiveFilter._tight",
        old="(1.0 - SHARE_FOR_OTHERS) * self.budget.delta",
        new="self.budget.delta",
        breaks=guarantees.BUDGET,
        tests=(
            "tests/accounting/test_spend.py"
            "::test_going_from_one_filter_to_another_would_pass_the_budget_had_delta_not_been_divided_before",
        ),
    ),
    Bug(
        meaning="who goes back to the first mechanism gets its tight quota back",
        place="fedprivacy.accounting.filters:FixedThenAdaptiveFilter.quota",
        old="executed.keys() <= {event}",
        new="event in executed or not executed",
        breaks=guarantees.BUDGET,
        tests=("tests/accounting/test_spend.py::test_a_change_is_for_ever",),
    ),
    Bug(
        meaning="the sensitivity of a question under replacement is taken for that of removal",
        place="fedprivacy.accounting.filters:_gaussian_cost",
        old="Fraction(event.sensitivity)",
        new="1",
        breaks=guarantees.BUDGET,
        tests=(
            "tests/accounting/test_gaussian_filter.py"
            "::test_as_many_executions_as_exactly_fit_are_granted_and_not_one_more[3.0-replace-one]",
        ),
    ),
    Bug(
        meaning="questions that were asked count for nothing when the next one is",
        place="fedprivacy.accounting.filters:GaussianFilter.quota",
        old="max(self._parts - spent, 0)",
        new="self._parts",
        breaks=guarantees.BUDGET,
        tests=("tests/accounting/test_gaussian_filter.py::test_no_sequence_passes_the_budget_whatever_the_noises",),
    ),
    Bug(
        meaning="what a run has taken of its spend is forgotten",
        place="fedprivacy.accounting.spend:RunLimit.quota",
        old="max(whole - taken, 0)",
        new="whole",
        breaks=guarantees.SPEND,
        tests=("tests/accounting/test_spend.py::test_a_run_takes_its_spend_and_not_one_step_more",),
    ),
    Bug(
        meaning="an epsilon that was computed at one delta is shown at another",
        place="fedprivacy.accounting.population:PopulationAccountant._simple",
        old="((self._keys[places] & _MECHANISM) << _STEP_BITS | self._steps[places]) << _DELTA_BITS | number",
        new="((self._keys[places] & _MECHANISM) << _STEP_BITS | self._steps[places]) << _DELTA_BITS",
        breaks=guarantees.EPSILON,
        tests=("tests/accounting/test_population.py::test_the_same_steps_at_another_delta_have_another_epsilon",),
    ),
    Bug(
        meaning="an epsilon that was computed at one delta is shown at another that has got its number",
        place="fedprivacy.accounting.population:PopulationAccountant._number_deltas",
        old="if not np.array_equal(number[: self._delta_number.size], self._delta_number): ...",
        new="if False: ...",
        breaks=guarantees.EPSILON,
        tests=("tests/accounting/test_population.py::test_the_same_steps_at_another_delta_have_another_epsilon",),
    ),
    Bug(
        meaning="noise is solved for as if a record were added or removed, whatever the relation",
        place="fedprivacy.accounting.calibration:noise_multiplier.history",
        old="PoissonSampledGaussian(sampling_rate, noise, relation)",
        new="PoissonSampledGaussian(sampling_rate, noise)",
        breaks=guarantees.EPSILON,
        tests=("tests/accounting/test_calibration.py::test_replacing_a_record_takes_twice_the_noise_of_adding_one",),
    ),
    Bug(
        meaning="a reading states a smaller delta than its epsilon is of",
        place="fedprivacy.accounting.views:reading",
        old="pld.epsilon(executed, delta)",
        new="pld.epsilon(executed, max(delta, 1e-5))",
        breaks=guarantees.EPSILON,
        tests=("tests/accounting/test_views.py::test_the_server_s_reading_is_the_pld_s",),
    ),
    Bug(
        meaning="a person's rows are accounted for as one record",
        place="fedprivacy.accounting.persons:_of_rows",
        old="RowSampledGaussian(event.sampling_rate, event.noise_multiplier, rows, event.relation)",
        new="event",
        breaks=guarantees.EPSILON,
        tests=("tests/accounting/test_persons.py::test_the_figures_of_the_guide",),
    ),
    Bug(
        meaning="only one of the clients at which a person has rows is counted",
        place="fedprivacy.accounting.persons:of_person",
        old="count * times * clients",
        new="count * times",
        breaks=guarantees.EPSILON,
        tests=("tests/accounting/test_persons.py::test_the_losses_of_a_persons_clients_add_up",),
    ),
    Bug(
        meaning="the rows of a person never join the same step",
        place="fedprivacy.accounting.pairs:Joining.of",
        old="weights >= _NO_WEIGHT",
        new="weights > 1.0",
        breaks=guarantees.EPSILON,
        tests=("tests/accounting/test_persons.py::test_the_figures_of_the_guide",),
    ),
)
