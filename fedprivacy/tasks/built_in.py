"""The built-in tasks, by name."""

BUILT_IN = {
    "digits": "fedprivacy.tasks.digits:Digits",
    "cancer": "fedprivacy.tasks.cancer:Cancer",
}
"""Where the built-in tasks are defined, by name."""

DEFAULT_TASK = "digits"
