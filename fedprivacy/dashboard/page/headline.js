// What a passer-by wants to know: one sentence, how far the run is, and four numbers.

import { byId, el, icon, setText } from "./dom.js";
import { statusMark } from "./runs.js";
import {
  NBSP,
  NO_PRIVACY,
  STATES,
  STATUS,
  clientsText,
  clockText,
  count,
  dateText,
  durationText,
  metricName,
  noiseText,
  number,
  ownSpentText,
  slug,
  smallPrint,
  statusOf,
} from "./words.js";

/** Shows a run as it is now. */
export function showHeadline(run) {
  byId("status").replaceChildren(statusMark(run));
  setText(byId("kicker"), kicker(run));
  setText(byId("sentence"), sentence(run));
  setText(byId("meaning"), run.guarantee);
  byId("baseline-note").hidden = run.privacy;
  byId("seeded-note").hidden = !run.seeded || !run.privacy;
  showSilence(run);
  showProgress(run);
  showTiles(tiles(run));
  document.title = title(run);
}

function kicker(run) {
  const sigma = run.privacy ? `σ${NBSP}${noiseText(run, (each) => Number(each.toPrecision(4)))}` : NO_PRIVACY;
  const how = run.asks ? "questions" : run.strategy;
  return `${run.asks ? "" : `${run.name} · `}task ${run.task} · ${how} · ${sigma} · began ${dateText(run.started)}`;
}

function sentence(run) {
  const who = clientsText(run.clients);
  const { last, worst } = run;
  if (!last) {
    return `${run.name} trains ${run.task}; no round has finished yet`;
  }
  if (run.asks) {
    return `${who} answered privately: ${run.name}${worst ? `; ${spent(run)}` : ""}`;
  }
  const metric = `${metricName(run.metric)} ${last.metric_texts[run.metric] ?? "not measured"}`;
  return `${who} ${deed(run)}: ${metric}${worst ? `, ${spent(run)}` : ""}`;
}

function deed(run) {
  const rounds = count(run.rounds, "round");
  const some = `${number(run.rounds)} of ${count(run.rounds_planned, "round")}`;
  const has = run.clients === 1 ? "has" : "have";
  return {
    running: `${has} trained ${run.task} for ${some}`,
    finished: `trained ${run.task} for ${rounds}`,
    stopped: `trained ${run.task} for ${some}, until nobody had budget left`,
    failed: `trained ${run.task} for ${some}, until the run failed`,
  }[run.status];
}

function spent(run) {
  if (!run.privacy) {
    return NO_PRIVACY;
  }
  const has = run.status === "running" ? "has spent" : "spent";
  const who = run.clients === 1 ? `it ${has}` : `no client ${has} more than`;
  return `${who} ${ownSpentText(run.worst, run.delta_text)}`;
}

function showSilence(run) {
  byId("silent-note").hidden = statusOf(run) !== "silent";
  setText(byId("silent-since"), clockText(run.updated));
}

function showProgress(run) {
  const bar = byId("progress");
  bar.max = Math.max(run.rounds_planned, 1);
  bar.value = run.rounds;
  bar.dataset.status = statusOf(run);
  setText(byId("progress-words"), run.asks ? "Asked once" : `Round ${number(run.rounds)} of ${number(run.rounds_planned)}`);
  setText(byId("phase"), phaseText(run));
  setText(byId("time-left"), run.seconds_left === null ? "" : `${durationText(run.seconds_left)} left`);
}

function phaseText({ status, phase }) {
  if (status !== "running" || !phase) {
    return "";
  }
  return phase.clients ? `${phase.name}, ${count(phase.clients, "client")}` : phase.name;
}

function tiles(run) {
  const { last, worst, states } = run;
  const clients = STATES.reduce((sum, state) => sum + (states[state] ?? 0), 0);
  return [
    {
      number: last?.metric_texts[run.metric] ?? "–",
      words: run.asks ? metricName(run.metric) : `${metricName(run.metric)} after ${count(run.rounds, "round")}`,
    },
    {
      number: worst ? lossText(worst, run) : "–",
      words: run.privacy ? `largest privacy loss of a client${worst ? budgetWords(worst) : ""}` : "no clipping, no noise",
      small: run.privacy ? smallPrint(run) : "",
    },
    {
      number: run.privacy ? `${number(last?.exhausted ?? 0)} of ${number(clients)}` : number(clients),
      words: run.privacy ? spentWords(clients, states) : `${clients === 1 ? "client" : "clients"}, without a budget`,
      small: stateMarks(states),
      target: "clients",
    },
    {
      number: number(run.failures),
      words: run.asks
        ? `${run.failures === 1 ? "client was" : "clients were"} asked and did not answer`
        : `${run.failures === 1 ? "update was" : "updates were"} asked for and not used`,
      target: "failures",
    },
  ];
}

function lossText({ epsilon_text }, { privacy }) {
  return privacy ? `ε${NBSP}${epsilon_text}` : epsilon_text;
}

function budgetWords({ budget, budget_text }) {
  return budget === null ? ", no budget set" : `, of budget${NBSP}${budget_text}`;
}

function spentWords(clients, states) {
  const early = states.exhausted ? `, ${number(states.exhausted)} before the last round` : "";
  const ending = early || (states["spent as planned"] ? " as planned" : "");
  return `${clients === 1 ? "client has spent its" : "clients have spent their"} budget${ending}`;
}

function stateMarks(states) {
  const present = STATES.filter((state) => states[state]);
  return present.map((state) =>
    el("span", { class: `mark state-${slug(state)}` }, icon(slug(state)), `${number(states[state])} ${state}`),
  );
}

function showTiles(wanted) {
  const list = byId("tiles");
  if (!list.children.length) {
    list.append(
      ...wanted.map(() => el("div", {}, el("dt"), el("dd", { class: "figure-number" }), el("dd", { class: "small" }))),
    );
  }
  wanted.forEach((tile, place) => fillTile(list.children[place], tile));
}

function fillTile(tile, { number: value, words, small = "", target }) {
  const [term, big, print] = tile.children;
  setText(big, value);
  if (term.textContent !== words) {
    term.replaceChildren(target ? el("a", { href: `#${target}`, "data-jump": target }, words) : words);
  }
  const marks = [small].flat();
  if (print.textContent !== marks.map((mark) => mark.textContent ?? mark).join("")) {
    print.replaceChildren(...marks);
  }
}

function title(run) {
  const progress =
    run.status === "running" ? `${run.rounds}/${run.rounds_planned}` : (STATUS[run.status] ?? run.status);
  return `${progress} · ${run.name} · fedprivacy`;
}
