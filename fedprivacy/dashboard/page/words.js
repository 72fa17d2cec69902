// Numbers and states as words. An epsilon is never written here: the API's texts are never rounded down.

const NUMBERS = [
  "No",
  "One",
  "Two",
  "Three",
  "Four",
  "Five",
  "Six",
  "Seven",
  "Eight",
  "Nine",
  "Ten",
  "Eleven",
  "Twelve",
];
const DATE = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Between a sign and its number. */
export const NBSP = "\u00a0";

const NO_BREAK_HYPHEN = "\u2011";

/** What stands where an epsilon would, of a baseline. */
export const NO_PRIVACY = "no privacy";

/** Every state of a client, in the order in which a person worries less. */
export const STATES = ["active", "spent as planned", "exhausted", "refused", "failed", "unreconciled"];

/** A state as part of a name of a class or an icon. */
export function slug(state) {
  return state.replaceAll(" ", "-");
}

/** What each status of a run is called. */
export const STATUS = {
  running: "Running",
  silent: "Silent",
  finished: "Finished",
  stopped: "Stopped",
  failed: "Failed",
};

/** A run's status; silent is a status of its own. */
export function statusOf(run) {
  return run.status === "running" && run.silent ? "silent" : run.status;
}

/** 100,000 */
export function number(value) {
  return value.toLocaleString("en");
}

/** '1 client', '1,000 clients'. */
export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** 'Ten clients' at the beginning of a sentence. */
export function clientsText(value) {
  return `${NUMBERS[value] ?? number(value)} ${value === 1 ? "client" : "clients"}`;
}

/** A rate or a noise multiplier, in six digits at most. */
export function short(value) {
  return value === null || value === undefined ? "–" : String(Number(value.toPrecision(6)));
}

/** A run's noise multiplier: of every client, or from the least to the largest; 0: no client has come with its own. */
export function noiseText({ noise_multiplier: least, largest_noise_multiplier: largest }, shown = short) {
  if (least === 0) {
    return "each client's own";
  }
  return largest > least ? `${shown(least)} to ${shown(largest)}` : shown(least);
}

/** A metric's name for people: words, not a key. */
export function metricName(metric) {
  return metric.replaceAll(/[_-]/g, " ");
}

/** '21 Nov, 19:46' */
export function dateText(iso) {
  return DATE.format(new Date(iso));
}

/** '19:46:38' */
export function clockText(iso) {
  return CLOCK.format(new Date(iso));
}

/** 'about 2 h 10 min' */
export function durationText(seconds) {
  const minutes = Math.round(seconds / 60);
  if (minutes < 1) {
    return "less than a minute";
  }
  if (minutes < 60) {
    return `about ${minutes} min`;
  }
  const hours = Math.floor(minutes / 60);
  return hours < 24 ? `about ${hours} h ${minutes % 60} min` : `about ${Math.round(hours / 24)} days`;
}

/** 'ε 1.42 (δ = 1e-5) of its budget 3', or without a budget. */
export function ownSpentText({ epsilon_text, budget, budget_text }, deltaText) {
  const delta = `(δ${NBSP}=${NBSP}${deltaText})`;
  const epsilon = `ε${NBSP}${epsilon_text}`;
  return budget === null
    ? `${epsilon} ${delta}; no budget was set`
    : `${epsilon} of its budget${NBSP}${budget_text} ${delta}`;
}

/** Every epsilon's small print: whose eyes it is for, at which delta, by which accountant. */
export function smallPrint({ view, delta_text, accountant }) {
  const delta = delta_text.replaceAll("-", NO_BREAK_HYPHEN);
  return `as seen by the ${view}, δ${NBSP}=${NBSP}${delta}, ${accountant} accountant`;
}
