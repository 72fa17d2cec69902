// Starts the page, and tells every part of it when another run is shown and when the shown one goes on.

import { ApiError, address, getJson, knock, onReach, runPath } from "./api.js";
import { Audits } from "./audits.js";
import { Clients } from "./clients.js";
import { Comparison } from "./comparison.js";
import { showConnection } from "./connection.js";
import { copyFrom } from "./copy.js";
import { announce, byId, el, icon, jumpTo } from "./dom.js";
import { Experiments } from "./experiments.js";
import { Failures } from "./failures.js";
import { showHeadline } from "./headline.js";
import { Live } from "./live.js";
import { at, goOn, onReturn } from "./place.js";
import { RunCharts } from "./run-charts.js";
import { RunPicker } from "./runs.js";
import { showSettings } from "./settings.js";
import { chooseTheme, chosenTheme, nextTheme } from "./theme.js";
import { STATUS, statusOf } from "./words.js";

const LOOK_AGAIN = 30_000;

const picker = new RunPicker((run) => openRun(run.run_id));
const charts = new RunCharts();
const clients = new Clients({ onChosen: () => charts.drawClients() });
const sections = [charts, new Audits(), clients, new Failures(), new Comparison(), new Experiments((runId) => openRun(runId))];
const live = new Live(connectionChanged);

let shown = null;
let loads = 0;
let connection = "connecting";

function openRun(runId) {
  goOn({ run: runId, clients: [], metric: "", search: "", state: "", page: "" });
  load();
}

/** Shows the run that the address names, or the newest. Asked again meanwhile, it leaves that to the later answer. */
async function load() {
  loads += 1;
  const mine = loads;
  const answer = await wanted();
  if (mine === loads) {
    answer();
    follow();
  }
}

/** What to show, as a function that shows it. */
async function wanted() {
  try {
    const runId = at("run") || (await newestRun());
    if (!runId) {
      return () => showInstead("no-run");
    }
    const run = await getJson(runPath(runId));
    return () => show(run);
  } catch (error) {
    return error instanceof ApiError ? () => showInstead("no-such-run") : () => {};
  }
}

async function newestRun() {
  const { runs, problems } = await getJson("/runs", { limit: 1 });
  byId("problems").replaceChildren(...problems.map((problem) => el("li", {}, problem)));
  return runs[0]?.run_id;
}

function show(run) {
  shown = run;
  only("run");
  picker.show(run);
  showHeadline(run);
  showSettings(run);
  sections.forEach((section) => section.show(run));
}

function showInstead(id) {
  shown = null;
  only(id);
  document.title = "fedprivacy";
}

function only(part) {
  ["run", "no-run", "no-such-run"].forEach((id) => {
    byId(id).hidden = id !== part;
  });
}

function follow() {
  if (isRunning()) {
    live.follow(address(runPath(shown.run_id, "/events")), {
      round: ({ run }) => update(run),
      run: ({ run }) => update(run),
    });
  } else {
    live.follow(address("/events"), { runs: lookAgain });
  }
  showConnection(connection, isHeard());
}

function update(run) {
  if (run.run_id !== shown?.run_id) {
    return;
  }
  const before = shown;
  shown = run;
  showHeadline(run);
  if (run.rounds !== before.rounds || run.status !== before.status) {
    sections.forEach((section) => section.update(run));
  }
  if (statusOf(run) !== statusOf(before)) {
    picker.show(run);
    announce(`The run ${run.name}: ${STATUS[statusOf(run)]}`);
    follow();
  }
}

/** Asks for the run again: the events may have been lost, or an ended run may have been resumed. */
async function lookAgain() {
  if (shown) {
    const run = await getJson(runPath(shown.run_id)).catch(() => null);
    if (run) {
      update(run);
    }
  } else if (!at("run")) {
    load();
  }
}

function isRunning() {
  return shown?.status === "running";
}

function isHeard() {
  return isRunning() && !shown.silent;
}

function connectionChanged(state) {
  connection = state;
  showConnection(state, isHeard());
  if (state === "lost") {
    knock();
  }
}

function showThemeChoice() {
  const chosen = chosenTheme();
  byId("theme").replaceChildren(icon(chosen), chosen[0].toUpperCase() + chosen.slice(1));
  byId("theme").setAttribute("aria-label", `${chosen} theme; change to ${nextTheme()}`);
}

function listen() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-jump]");
    if (link) {
      event.preventDefault();
      jumpTo(link.dataset.jump);
    }
    const button = event.target.closest("[data-copy]");
    if (button) {
      copyFrom(button, () => button.dataset.copy);
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, select, textarea")) {
      event.preventDefault();
      byId("client-search").focus();
    }
  });
  byId("theme").addEventListener("click", () => {
    chooseTheme(nextTheme());
    showThemeChoice();
  });
}

onReach((answers) => {
  byId("unreachable").hidden = answers;
  if (answers) {
    load();
  }
});
onReturn(load);
setInterval(lookAgain, LOOK_AGAIN);
listen();
showThemeChoice();
load();
