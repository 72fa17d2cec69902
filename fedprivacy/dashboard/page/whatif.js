// What if the noise multiplier were another: how many rounds a client's budget would still pay for.

import { ApiError, getJson, runPath } from "./api.js";
import { FigureCard } from "./charts.js";
import { Chooser } from "./chooser.js";
import { byId, debounced, el, setText } from "./dom.js";
import { keptFresh } from "./freshness.js";
import { NBSP, count, number, smallPrint, spentText } from "./words.js";

const TYPING = 200;
const MOST_LISTED = 50;
const NO_ROUND = "No round has finished yet.";
const NO_BUDGET = "There is no budget, so nothing limits the rounds.";

/** The section of forecasts. */
export class WhatIf {
  #run = null;
  #clientId = "";
  #sigma = 0;
  #own = 0; // the client's sigma in the run
  #limited = null;
  #drawn = null;
  #asking = null;
  #chooser;
  #figure;
  #fresh = keptFresh(byId("whatif"), () => this.#load());

  constructor() {
    this.#chooser = new Chooser(byId("client-picker"), {
      name: "Client",
      placeholder: "client",
      find: (search, signal) => this.#found(search, signal),
      choose: (clientId) => this.ask(clientId),
      isChosen: (clientId) => clientId === this.#clientId,
    });
    this.#figure = new FigureCard({
      title: "Rounds left by noise multiplier",
      about: "More noise costs less in each round, and teaches less.",
      source: () => this.#source(),
    });
    byId("forecast-figure").append(this.#figure.element);
    this.#listen();
  }

  /** Another run. */
  show(run) {
    this.#run = run;
    byId("whatif-section").hidden = !run.privacy;
    if (!run.privacy) {
      return;
    }
    this.#setOwn(run.noise_multiplier);
    this.#setSigma(this.#own);
    this.ask("");
  }

  /** The same run went on. */
  update(run) {
    this.#run = run;
    if (run.privacy) {
      this.#fresh.later();
    }
  }

  /** About this client; an empty one is who runs out next. */
  ask(clientId) {
    this.#clientId = clientId;
    this.#chooser.label(clientId || "who runs out next");
    this.#drawn = null;
    this.#fresh.now();
  }

  #listen() {
    const slider = byId("sigma-slider");
    const field = byId("sigma");
    slider.addEventListener("input", () => {
      const exponent = Number(slider.value);
      this.#setSigma(exponent === 0 ? this.#own : rounded(this.#own * 2 ** exponent));
      this.#typed();
    });
    field.addEventListener("input", () => {
      this.#sigma = field.valueAsNumber;
      slider.value = String(Math.log2(this.#sigma / this.#own));
      this.#typed();
    });
    byId("sigma-own").addEventListener("click", () => {
      this.#setSigma(this.#own);
      this.#fresh.now();
    });
    byId("whatif").addEventListener("submit", (event) => event.preventDefault());
  }

  #typed = debounced(() => this.#fresh.now(), TYPING);

  // The field is short; what is asked for is exact, as another noise multiplier is another mechanism.
  #setSigma(value) {
    this.#sigma = value;
    byId("sigma").value = shown(value);
    byId("sigma-slider").value = String(Math.log2(value / this.#own));
  }

  #setOwn(value) {
    this.#own = value;
    setText(byId("sigma-own"), `The run's own: ${shown(value)}`);
  }

  // Clients may each have their own: whether what was asked for another was that one's, and is this one's no more.
  #isAnother({ noise_multiplier }) {
    if (noise_multiplier === this.#own) {
      return false;
    }
    const stale = this.#sigma === this.#own;
    this.#setOwn(noise_multiplier);
    this.#setSigma(stale ? noise_multiplier : this.#sigma);
    return stale;
  }

  async #found(search, signal) {
    const path = runPath(this.#run.run_id, "/clients");
    const { total, clients } = await getJson(path, { search, limit: MOST_LISTED }, { signal });
    const most = { value: "", content: [el("span", { class: "option-name" }, "who runs out next")] };
    const options = clients.map((client) => ({ value: client.client_id, content: asOption(client) }));
    return search ? { total, options } : { total: total + 1, options: [most, ...options] };
  }

  #source() {
    const { run_id, name } = this.#run;
    if (this.#limited === null) {
      return NO_ROUND;
    }
    const path = runPath(run_id, "/figures/forecast");
    return this.#limited ? { path, query: { client_id: this.#clientId }, name: `${name}-forecast` } : NO_BUDGET;
  }

  // The figure shows every noise multiplier: it waits for another client or another round.
  #draw() {
    const drawn = `${this.#run.run_id} ${this.#run.rounds} ${this.#clientId}`;
    if (drawn !== this.#drawn) {
      this.#figure[this.#drawn === null ? "now" : "later"]();
      this.#drawn = drawn;
    }
  }

  async #load() {
    if (this.#run.rounds === 0) {
      this.#limited = null;
      this.#draw();
      this.#say(el("p", { class: "muted" }, NO_ROUND));
      return;
    }
    this.#asking?.abort();
    const { signal } = (this.#asking = new AbortController());
    if (!byId("sigma").checkValidity() || Number.isNaN(this.#sigma)) {
      this.#say(el("p", { class: "muted" }, "A noise multiplier is a number from 0.05 to 10,000."));
      return;
    }
    const query = { client_id: this.#clientId, noise_multiplier: this.#sigma };
    try {
      const forecast = await getJson(runPath(this.#run.run_id, "/forecast"), query, { signal });
      if (this.#isAnother(forecast)) {
        await this.#load();
        return;
      }
      this.#limited = forecast.budget !== null;
      this.#draw();
      this.#say(...answer(forecast), el("p", { class: "muted" }, `ε ${smallPrint(this.#run)}.`));
    } catch (error) {
      if (error instanceof ApiError) {
        this.#say(el("p", { class: "muted" }, error.message));
      }
    }
  }

  #say(...content) {
    byId("forecast").replaceChildren(...content);
  }
}

function answer(forecast) {
  const { client_id, asked, rounds_left, noise_multiplier } = forecast;
  const own = rounds_left === null ? "no limit" : number(rounds_left);
  const spent = `${client_id} has spent ${spentText(forecast)}`;
  return [
    el("p", { class: "answer" }, asked.rounds_left === null ? "No limit" : `${count(asked.rounds_left, "round")} left`),
    el("p", { class: asked.allowed ? "" : "note" }, asked.words),
    el("p", { class: "muted" }, `${spent}; rounds left at the run's own σ${NBSP}${shown(noise_multiplier)}: ${own}.`),
  ];
}

function asOption(client) {
  return [
    el("span", { class: "option-name" }, client.client_id),
    el("span", { class: "option-about muted" }, spentText(client)),
  ];
}

function rounded(value) {
  return Number(value.toPrecision(3));
}

function shown(value) {
  return String(Number(value.toPrecision(4)));
}
