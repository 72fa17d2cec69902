"""Papers' results, measured again under honest accounting: one readable experiment in each module.

`python -m simulations.reproduce NAME` runs one over several seeds, and puts what came out beside what was published.
Each module holds its hyper-parameters as constants, with their source, and trains through the package's front door:
copy one to begin an experiment of your own, which is a `Reproduction` whose `measure` yields what it `Measured` for
each `Row`, at the `Workplace` that it is given.
"""

from simulations.reproduce.bench import REPRODUCTIONS
from simulations.reproduce.experiment import Measured, Reproduction, ReproductionError, Row, Workplace
from simulations.reproduce.reproduction import reproduce

__all__ = ["REPRODUCTIONS", "Measured", "Reproduction", "ReproductionError", "Row", "Workplace", "reproduce"]
