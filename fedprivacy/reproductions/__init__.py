"""Papers' results, measured again under honest accounting: one readable experiment in each module.

`fedprivacy reproduce NAME` runs one over several seeds, and puts what came out beside what was published. Each module
holds its hyper-parameters as constants, with their source, and trains through the package's front door: copy one to
begin an experiment of your own, which is a `Reproduction` whose `measure` yields what it `Measured` for each `Row`, at
the `Workplace` that it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedprivacy._support.lazy import names_of, when_asked

if TYPE_CHECKING:
    from fedprivacy.reproductions.experiment import Measured as Measured
    from fedprivacy.reproductions.experiment import Reproduction as Reproduction
    from fedprivacy.reproductions.experiment import ReproductionError as ReproductionError
    from fedprivacy.reproductions.experiment import Row as Row
    from fedprivacy.reproductions.experiment import Workplace as Workplace

__all__ = ["REPRODUCTIONS", "Measured", "Reproduction", "ReproductionError", "Row", "Workplace"]

REPRODUCTIONS: dict[str, str] = {
    "school": "fedprivacy.reproductions.school:SCHOOL",
    "logistic": "fedprivacy.reproductions.logistic:LOGISTIC",
    "mnist": "fedprivacy.reproductions.mnist:MNIST",
    "tcga-brca": "fedprivacy.reproductions.tcga_brca:TCGA_BRCA",
    "readmission": "fedprivacy.reproductions.readmission:READMISSION",
    "digits": "fedprivacy.reproductions.digits:DIGITS",
}
"""Place of each reproduction, "module:attribute", by the name that is typed. It is imported on first use."""

__getattr__ = when_asked(__name__, "experiment")
__dir__ = names_of(__name__)
