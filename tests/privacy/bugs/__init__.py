"""The catalogue of planted bugs: what each breaks, and who notices. `python -m tests.privacy.bugs` plants them all."""

from tests.privacy.bugs import (
    accounting,
    audit,
    audited_replies,
    audited_training,
    deploy,
    flower,
    gradients,
    guard,
    ledger,
    questions,
    runs,
    single,
    tasks,
    training,
)

BUGS = (
    *gradients.BUGS,
    *training.BUGS,
    *audited_training.BUGS,
    *single.BUGS,
    *audited_replies.BUGS,
    *accounting.BUGS,
    *questions.BUGS,
    *tasks.BUGS,
    *guard.BUGS,
    *ledger.BUGS,
    *runs.BUGS,
    *flower.BUGS,
    *audit.BUGS,
    *deploy.BUGS,
)
