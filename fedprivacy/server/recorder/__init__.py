"""Turns a run into what people look at: files, the run store that pages read, trackers."""

from fedprivacy.server.recorder.recorder import Recorder

__all__ = ["Recorder"]
