"""The ServerApp that a coordinator deploys: from a run's settings to its last round, in one place."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedprivacy.flower import PrivateStrategy
from fedprivacy.flower.server.accounts import RunAccounts
from fedprivacy.runs.records.folder import plan_of
from fedprivacy.server.app import RunStart, answer_run_config, build_strategy
from fedprivacy.server.recorder import Recorder
from fedprivacy.trackers import build_trackers

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train privately, or ask questions; go on with a run that was stopped if the settings name one."""
    if context.run_config.get("questions"):
        answer_run_config(grid, context.run_config)
        return
    config = plan_of(context.run_config).config  # every setting, checked, all problems said at once
    start = RunStart.of(config)  # the task, what a local step costs, a run id and a folder; or where a run goes on
    averaging = build_strategy(config)  # chooses clients and averages updates: any strategy of Flower's
    recorder = Recorder(  # every finished round: to the folder, to the run store that the dashboard reads, to trackers
        start.folder,
        start.plan,
        start.run_id,
        trackers=build_trackers(config.trackers),
        resume_from=start.finished,
    )
    strategy = PrivateStrategy(
        averaging,
        start.plan,
        run_id=start.run_id,
        accounts=RunAccounts,  # ledger and central accountant: charge every client before its grant leaves
        observers=[recorder],
        on_open=recorder.on_open,
        on_phase=recorder.on_phase,
        resume=start.checkpoint,
        checkpoints=start.folder,
    )
    with recorder.recording(strategy.result):
        strategy.start(grid)
