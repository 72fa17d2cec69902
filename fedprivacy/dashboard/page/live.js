// Following what happens, by server-sent events: one connection for each page that can be seen.
//
// Browsers open six connections to a server at most, for all tabs together: a hidden page gives its own back.

const FIRST_WAIT = 1_000;
const LONGEST_WAIT = 15_000;

/** A connection that comes back by itself. */
export class Live {
  #address = null;
  #handlers = {};
  #source = null;
  #timer = null;
  #wait = FIRST_WAIT;
  #onState;

  /** @param onState called with "connecting", "live", "lost" or "paused". */
  constructor(onState) {
    this.#onState = onState;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#pause() : this.#open()));
  }

  /** Follows another address; `handlers` by event name receive the events' data. */
  follow(address, handlers) {
    this.#handlers = handlers;
    if (address === this.#address) {
      return;
    }
    this.#address = address;
    this.#open();
  }

  #open() {
    this.#close();
    if (this.#address === null || document.hidden) {
      return;
    }
    this.#onState("connecting");
    this.#source = new EventSource(this.#address);
    this.#source.addEventListener("open", () => this.#opened());
    this.#source.addEventListener("error", () => this.#lost());
    for (const name of ["round", "run", "runs"]) {
      this.#source.addEventListener(name, (event) => this.#handlers[name]?.(JSON.parse(event.data)));
    }
  }

  #opened() {
    this.#wait = FIRST_WAIT;
    this.#onState("live");
  }

  #lost() {
    this.#onState("lost");
    if (this.#source.readyState === EventSource.CLOSED) {
      this.#timer = setTimeout(() => this.#open(), this.#wait);
      this.#wait = Math.min(2 * this.#wait, LONGEST_WAIT);
    }
  }

  #pause() {
    this.#close();
    this.#onState("paused");
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }
}
