// The run that is shown, chosen among all that the ledger knows.

import { getJson } from "./api.js";
import { Chooser } from "./chooser.js";
import { byId, el, icon } from "./dom.js";
import { STATUS, dateText, statusOf } from "./words.js";

const MOST_LISTED = 100;

/** The chooser in the header; `choose` is called with a run. */
export class RunPicker {
  #chooser;
  #shown = null;

  constructor(choose) {
    this.#chooser = new Chooser(byId("run-picker"), {
      name: "Run",
      placeholder: "name, task or id",
      find: foundRuns,
      choose,
      isChosen: (run) => run.run_id === this.#shown,
    });
    this.#chooser.label("No run");
  }

  /** Names the run that is shown. */
  show(run) {
    this.#shown = run.run_id;
    this.#chooser.label(statusIcon(run), run.name);
  }
}

/** Runs as a chooser's options. */
export async function foundRuns(search, signal) {
  const { total, runs, problems } = await getJson("/runs", { search, limit: MOST_LISTED }, { signal });
  return { total, problems, options: runs.map((run) => ({ value: run, content: content(run) })) };
}

/** A run's status as a shape and a word. */
export function statusMark(run) {
  const status = statusOf(run);
  return el("span", { class: `mark mark-${status}` }, statusIcon(run), STATUS[status] ?? status);
}

function statusIcon(run) {
  return icon(statusOf(run));
}

function content(run) {
  const about = `${run.task}, ${run.rounds} of ${run.rounds_planned} rounds, ${dateText(run.started)}`;
  return [
    el("span", { class: "option-name" }, run.name),
    el("span", { class: "option-about muted" }, about),
    statusMark(run),
  ];
}
