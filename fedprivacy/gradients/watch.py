"""What sees every operation of a computation, to refuse some of them."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """A dispatch mode that does without torch's compiler.

    Torch imports its compiler to keep it out of a dispatch mode, unless the mode says that it need not: a second and a
    half in every process of a deployed client, which is one for each message.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
