"""The built-in tasks, by name."""

BUILT_IN = {
    "digits": "fedprivacy.tasks.digits:Digits",
    "cancer": "fedprivacy.tasks.cancer:Cancer",
}
"""Sources of the built-in tasks, by name."""

DEFAULT_TASK = "digits"
