"""What the site's sidebar lists: every page once, under the question that it answers."""

CONTENTS = {
    "Start": (*("for/researchers", "for/hospitals", "for/coordinators", "for/privacy-officers", "what-you-can-do"),),
    "Tutorial": (
        *("tutorial/README", "tutorial/1-counting", "tutorial/2-sensitivity", "tutorial/3-composition"),
        *("tutorial/4-post-processing", "tutorial/5-sampling", "tutorial/6-training", "tutorial/7-patients"),
    ),
    "Before you train": ("choose-epsilon", "epsilon", "risk", "recommend", "questions"),
    "Your model and records": (
        *("own-task", "tables", "patients", "images", "transformers"),
        *("in-python", "own-loop", "own-layer", "flower-app"),
    ),
    "Train": ("utility", "strategies", "algorithms", "callbacks", "resume"),
    "Compare": ("metrics", "sweep", "runs", "run-file", "reproduce"),
    "Many clients": ("populations", "participation", "cluster", "profile"),
    "Protect": ("client-terms", "several-runs", "user-level", "local-evaluation"),
    "Watch": ("dashboard", "grafana", "logs"),
    "Prove": ("audit", "ledger"),
    "Deploy": (
        *("deploy", "containers", "certificates", "keys", "operate", "incidents"),
        *("repository/clients/README", "repository/server/README"),
    ),
    "Reference": (
        *("reference/settings", "reference/commands", "reference/python", "reference/refusals"),
        *("reference/exit-codes", "reference/run-folder", "reference/ledger-tables", "reference/wire"),
        *("reference/flower-versions", "reference/glossary"),
    ),
    "Explanation": (
        *("explanation/sharp-edges", "explanation/threat-model", "explanation/is-your-model-private"),
        "explanation/accounting",
        *("explanation/gradients", "explanation/models", "explanation/server-fields", "explanation/compliance"),
    ),
    "Papers' results, repeated": (
        *("explanation/reproduced/digits", "explanation/reproduced/logistic", "explanation/reproduced/mnist"),
        *("explanation/reproduced/readmission", "explanation/reproduced/school", "explanation/reproduced/tcga-brca"),
    ),
    "How it is built": (
        *("explanation/architecture", "explanation/testing", "explanation/mutation-table"),
        *("repository/CONTRIBUTING", "repository/CHANGELOG", "repository/SECURITY"),
    ),
}
"""Titles of groups and their pages; a page without a folder is a how-to."""
