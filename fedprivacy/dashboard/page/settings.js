// What the run was asked to do.

import { byId, el } from "./dom.js";
import { NO_PRIVACY, noiseText } from "./words.js";

const OPEN = {
  epsilon: "infinite: the run measures and stops nobody",
  seed: "none: fresh cryptographic randomness",
};

const WITHOUT = { ...OPEN, epsilon: NO_PRIVACY, "noise-multiplier": NO_PRIVACY };

/** Lists the settings of a run. */
export function showSettings(run) {
  const { settings, relation, unit } = run;
  const smallest = `left open: the smallest that the budget allows, ${noiseText(run)}`;
  const open = settings.privacy === false ? WITHOUT : { ...OPEN, "noise-multiplier": smallest };
  const given = Object.entries(settings).map(([key, value]) =>
    row(el("code", {}, key), text(value) ?? open[key] ?? "left open"),
  );
  const used = [
    row("noise multiplier used", settings.privacy === false ? NO_PRIVACY : noiseText(run, String)),
    row("neighbouring relation", relation),
    row("unit of privacy", unit),
  ];
  byId("settings").tBodies[0].replaceChildren(...given, ...used);
}

function text(value) {
  return value === null || value === "" ? null : typeof value === "object" ? JSON.stringify(value) : String(value);
}

function row(name, value) {
  return el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value));
}
