"""A book adds up what the records of a log say."""

from fedprivacy.budget import PrivacyBudget
from fedprivacy.events import PoissonSampledGaussian
from fedprivacy.odometer import ChargeKey, Odometer
from fedprivacy.odometer.book import BookFile

EVENT = PoissonSampledGaussian(0.05, 1.2)
FIRST, LAST = PrivacyBudget(3.0, 1e-5), PrivacyBudget(5.0, 1e-6)


def test_the_terms_that_are_shown_are_those_of_the_last_charge(tmp_path):
    file = tmp_path / "odometer.log"
    for round, budget in enumerate((FIRST, FIRST, LAST), start=1):
        Odometer(file, budget).charge(ChargeKey("run", round, 1), EVENT, 1)
    books = BookFile(file)
    assert books.book.terms is None
    with books.transaction():
        assert books.book.terms.budget == LAST
