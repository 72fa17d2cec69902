"""Audits of other people's training code: an `App` says how it is called, what leaves it, and what epsilon it shows."""

from fedprivacy.audit.apps.adapter import App, AppError, Records, Seen, Settings, load_app
from fedprivacy.audit.apps.app_audit import audit_app

__all__ = ["App", "AppError", "Records", "Seen", "Settings", "audit_app", "load_app"]
