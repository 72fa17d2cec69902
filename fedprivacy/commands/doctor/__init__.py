"""`fedprivacy doctor`: finds the model that a user names, has it diagnosed, and says what to do."""

from fedprivacy.commands.doctor.finding import ModelError, Patient, find
from fedprivacy.commands.doctor.showing import Visit, as_json, page, visit

__all__ = ["ModelError", "Patient", "Visit", "as_json", "find", "page", "visit"]
