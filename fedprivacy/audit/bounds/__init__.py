"""Lower bounds on epsilon, from the numbers of an attack: counts of guesses, or readings of releases.

Each is a confidence bound: on a mechanism that keeps what it promises it exceeds the true epsilon with a probability of
at most 1 - confidence. They differ in what they assume and so in how close they come:

| module | from | assumes of the mechanism | of the attack |
|---|---|---|---|
| `clopper_pearson` | false and true positives | nothing | independent scores |
| `one_run` | right guesses about one run | nothing | fair, independent coins decide which canaries are in |
| `f_dp` | the same | a family of trade-off functions | the same |
| `per_step` | readings of single steps | Gaussian noise, Poisson samples | the length of canaries is the same |

Pure functions of numbers: numpy, scipy and our own accounting; no model, no message.
"""
