"""`fedprivacy doctor`: finds the model that a user names, has it diagnosed, and says what to do."""

from fedprivacy.commands.doctor.pages import Visit, as_json, page, visit
from fedprivacy.commands.doctor.subjects import ModelError, Patient, find

__all__ = ["ModelError", "Patient", "Visit", "as_json", "find", "page", "visit"]
