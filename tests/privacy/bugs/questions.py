"""Bugs of questions and answers."""

from tests.privacy.bugs import guarantees
from tests.privacy.bugs.bug import Bug

BUGS = (
    Bug(
        meaning="the list of columns holds for what is summed, and not for conditions and groups",
        place="fedprivacy.questions.question:Question.columns",
        old="(*self.reads, *looked_at)",
        new="self.reads or looked_at",
        breaks=guarantees.ALLOWED,
        tests=(
            "tests/privacy/test_questions_attacked.py::test_what_the_list_does_not_name_is_refused_wherever_it_stands",
        ),
    ),
    Bug(
        meaning="the list of kinds holds for the first question alone",
        place="fedprivacy.questions.questionnaire:Questionnaire.kinds",
        old="(question.kind for question in self.questions)",
        new="(question.kind for question in self.questions[:1])",
        breaks=guarantees.ALLOWED,
        tests=(
            "tests/privacy/test_questions_attacked.py::test_what_the_list_does_not_name_is_refused_wherever_it_stands",
        ),
    ),
    Bug(
        meaning="a column's name begins a line of the client's log",
        place="fedprivacy.questions.arguments:check_name",
        old="name.isprintable()",
        new="is_writable(name)",
        breaks=guarantees.BOUNDS,
        tests=(
            "tests/privacy/test_questions_attacked.py::test_what_a_server_asks_cannot_forge_a_line_in_the_client_s_log",
        ),
    ),
    Bug(
        meaning="the sensitivity of sums and means is that of their count",
        place="fedprivacy.questions.moments:_Moments.squared_sensitivity",
        old="sum(weight**2 for weight in self.weights)",
        new="self.weights[0] ** 2",
        breaks=guarantees.TOTALS,
        tests=("tests/privacy/test_questions_neighbours.py::test_the_bound_is_reached",),
        gates=("answers",),
    ),
    Bug(
        meaning="the sensitivity of quantiles is that of a record in the last interval",
        place="fedprivacy.questions.quantiles:Quantiles.squared_sensitivity",
        old="(coefficients(self.points) ** 2).sum()",
        new="coefficients(self.points)[0] ** 2",
        breaks=guarantees.TOTALS,
        tests=(
            "tests/privacy/test_questions_neighbours.py"
            "::test_one_record_moves_noisy_totals_by_what_is_charged_and_nothing_else",
        ),
    ),
    Bug(
        meaning="every question has the noise of all of them together",
        place="fedprivacy.questions.questionnaire:Questionnaire.noise_multipliers",
        old="[sigma * math.sqrt(whole / share) * ROUNDED_UP for share in self.shares]",
        new="[sigma * ROUNDED_UP for share in self.shares if whole]",
        breaks=guarantees.ONE_RELEASE,
        tests=("tests/privacy/test_questions_neighbours.py::test_every_question_carries_the_noise_of_its_share",),
        gates=("answers",),
    ),
    Bug(
        meaning="whether a group is told goes by its true number of records",
        place="fedprivacy.questions.release:GaussianAnswers._noisy",
        old="Noisy(totals[group], scale)",
        new="Noisy(exact.numpy()[group], scale)",
        breaks=guarantees.ALLOWED,
        tests=(
            "tests/privacy/test_questions_neighbours.py"
            "::test_whether_a_group_is_told_is_decided_by_its_noisy_number_alone",
        ),
        gates=("answers",),
    ),
    Bug(
        meaning="the totals of a group that is too small leave anyway",
        place="fedprivacy.questions.release:GaussianAnswers._noisy",
        old="told[:, np.newaxis]",
        new="told[:, np.newaxis] | True",
        breaks=guarantees.ALLOWED,
        tests=(
            "tests/privacy/test_questions_neighbours.py::test_what_is_not_told_of_one_question_is_no_matter_to_another",
        ),
        gates=("answers",),
    ),
    Bug(
        meaning="all questions of a grant have the same noise",
        place="fedprivacy.questions.release:GaussianAnswers.release",
        old="position.step + number",
        new="position.step",
        breaks=guarantees.NO_REPEAT,
        tests=("tests/privacy/test_questions_seeded.py::test_whatever_names_an_answer_gives_it_other_noise",),
        gates=("answers",),
    ),
    Bug(
        meaning="answers draw their noise where training does",
        place="fedprivacy.questions.release:GaussianAnswers.release",
        old="keystream.reader(Purpose.ANSWERS, Position(position.round, position.step + number))",
        new="keystream.reader(Purpose.NOISE, Position(position.round, position.step + number))",
        breaks=guarantees.NO_REPEAT,
        tests=("tests/questions/test_release.py::test_noise_of_answers_is_not_that_of_training",),
        gates=("answers",),
    ),
    Bug(
        meaning="an answer of another client is read again as one's own",
        place="fedprivacy.flower.server.ask_clients:answered_before",
        old="each[dataset][-1]",
        new="next(iter(each.values()))[-1]",
        breaks=guarantees.KEPT_ANSWERS,
        tests=(
            "tests/flower/test_questions.py::test_an_answer_is_read_again_for_nothing_and_asked_anew_for_its_price",
        ),
    ),
    Bug(
        meaning="a sum with bounds around zero shows a part of the records as their count",
        place="fedprivacy.questions.moments:_Moments.per_count",
        old="self.weights[0]",
        new="STEPS",
        breaks=guarantees.FIGURE,
        tests=("tests/questions/test_moments.py::test_a_sum_counts_every_record_once_wherever_its_bounds_lie",),
    ),
    Bug(
        meaning="the count of a sum with bounds around zero has next to nothing of the sensitivity",
        place="fedprivacy.questions.moments",
        old="LEAST_COUNT = 0.085",
        new="LEAST_COUNT = 0.001",
        breaks=guarantees.FIGURE,
        tests=(
            "tests/questions/test_moments.py"
            "::test_around_zero_the_count_of_a_sum_stays_of_use_and_the_sum_errs_hardly_more",
        ),
    ),
    Bug(
        meaning="questions that are asked together are shown, and kept, with the noise of all of them",
        place="fedprivacy.flower.server.ask_clients:_told",
        old="asked.noise_multipliers(plan.noise.of())",
        new="[plan.noise.of()] * len(asked.questions)",
        breaks=guarantees.FIGURE,
        tests=(
            "tests/flower/test_questions.py"
            "::test_questions_that_are_asked_together_each_have_the_error_of_their_share_now_and_when_read_again",
        ),
    ),
    Bug(
        meaning="the oldest answer is read again, though the question was asked anew since",
        place="fedprivacy.flower.server.ask_clients:answered_before",
        old="each[dataset][-1]",
        new="each[dataset][0]",
        breaks=guarantees.FIGURE,
        tests=("tests/flower/test_questions.py::test_of_several_answers_to_one_question_the_newest_is_read_again",),
    ),
    Bug(
        meaning="a mean is told of fewer records than its interval is right for",
        place="fedprivacy.questions.figures",
        old="ENOUGH = 3.0",
        new="ENOUGH = 2.2",
        breaks=guarantees.FIGURE,
        tests=("tests/questions/test_figures.py::test_too_few_records_are_divided_by_nothing",),
    ),
)
