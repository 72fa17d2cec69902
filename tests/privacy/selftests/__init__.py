"""Gates that look at no model and no record of a user: self-tests of our own machinery, run by the tests alone.

Each is a gate like those of `fedprivacy.audit.gates`: a planted bug can name it, and it must be quiet otherwise.
"""

from tests.privacy.selftests import answers_gate, rehearsal, stranger

SELF_TESTS = {"answers": answers_gate.check, "stranger": stranger.check, "rehearsal": rehearsal.check}
"""Self-tests by name."""
