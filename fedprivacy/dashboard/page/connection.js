// Whether the page is live, in words and by a shape.

import { byId, icon } from "./dom.js";

const WORDS = {
  connecting: ["silent", "Connecting…"],
  live: ["running", "Live"],
  over: ["finished", "Up to date"],
  paused: ["stopped", "Paused"],
  lost: ["failed", "Not connected, retrying"],
};

/** Shows a state of the connection; `running` says whether there is anything to come. */
export function showConnection(state, running) {
  const shown = state === "live" && !running ? "over" : state;
  const element = byId("connection");
  if (element.dataset.state !== shown) {
    const [shape, words] = WORDS[shown];
    element.dataset.state = shown;
    element.replaceChildren(icon(shape), words);
  }
}
