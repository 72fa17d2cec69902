"""Papers' results, measured again under honest accounting: one readable experiment in each module.

`fedprivacy reproduce NAME` runs one over several seeds, and puts what came out beside what was published. Each module
holds its hyper-parameters as constants, with their source, and trains through the package's front door: copy one to
begin an experiment of your own. `fedprivacy.reproductions.protocol` says what a reproduction is made of.
"""

from __future__ import annotations

REPRODUCTIONS: dict[str, str] = {
    "mnist": "fedprivacy.reproductions.mnist:MNIST",
    "digits": "fedprivacy.reproductions.digits:DIGITS",
    "tcga-brca": "fedprivacy.reproductions.tcga_brca:TCGA_BRCA",
}
"""Where each reproduction is, "module:attribute", by the name that is typed. It is imported when it is asked for."""
