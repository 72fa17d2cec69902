"""A data owner's own model: what its client kept of a run, put into the global model that the run came to."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from fedprivacy.flower.kept import KeptFor, KeptInFolder, kept_beside, kept_task
from fedprivacy.gradients import flat_parameters, trainable_parameters
from fedprivacy.tasks import Task
from fedprivacy.tasks.loader import model_of
from fedprivacy.training.algorithms import algorithm_of
from fedprivacy.training.local_round import personal_mask


class NoOwnModelError(ValueError):
    """There is no such model; the text says why, and what to do."""


def own_model(guard: Path, task: Task, global_model: Path, run_id: str | None = None) -> tuple[KeptFor, bytes]:
    """The model that a client uses after a run. Nothing is charged or changed.

    Args:
        guard: the client's guard, beside which its own vectors are stored.
        task: the task that the run trained.
        global_model: the run's `model.safetensors`, from the operator of the run.
        run_id: which run; None: the one that kept something last.

    Returns:
        Run, algorithm and last round; and the content of a file like the global model's.

    Raises:
        NoOwnModelError: the run left no model of the client's own; or the global model or the task is another one's.
        KeptError: a file beside the guard is damaged.
    """
    store = KeptInFolder(kept_beside(guard))
    kept_for = _chosen([kept for kept in store.held() if kept.task == kept_task(task)], guard, run_id)
    algorithm, model = algorithm_of(kept_for.algorithm), model_of(task)
    numbers = _load(model, global_model)
    shared, own = flat_parameters(model), store.load(kept_for._replace(round=kept_for.round + 1))
    if own is None or own.shape != shared.shape:
        raise NoOwnModelError(
            f"What is kept of run '{kept_for.run_id}' is of another model than the task's; name its own."
        )
    used = algorithm.model(shared, own, personal_mask(algorithm, model))
    nn.utils.vector_to_parameters(used, [p for p in model.parameters() if p.requires_grad])
    return kept_for, save({name: p.contiguous() for name, p in trainable_parameters(model).items()}, numbers)


def _chosen(held: list[KeptFor], guard: Path, run_id: str | None) -> KeptFor:
    models = [kept_for for kept_for in held if algorithm_of(kept_for.algorithm).personal]
    chosen = [kept_for for kept_for in models if run_id in {None, kept_for.run_id}]
    if chosen:
        return chosen[0]
    runs = ", ".join(dict.fromkeys(f"'{kept_for.run_id}'" for kept_for in models))
    of_run = "any run" if run_id is None else f"run '{run_id}'"
    raise NoOwnModelError(
        f"Beside '{guard}' lies no model of this task and {of_run}; "
        + (f"there are those of {runs}." if runs else "runs leave one with an algorithm such as mr-mtl or fedper.")
    )


def _load(model: nn.Module, file: Path) -> dict[str, str]:
    """Load the global model's trained parameters; what the file says of standardised inputs."""
    try:
        with safe_open(file, framework="pt") as opened:
            found = {name: opened.get_tensor(name) for name in trainable_parameters(model)}
            model.load_state_dict(found, strict=False)
            return opened.metadata() or {}
    except (SafetensorError, OSError, RuntimeError) as error:
        raise NoOwnModelError(
            f"'{file}' is not the global model of such a run ({error}); name its model.safetensors."
        ) from error
