// A live run changes faster than anybody reads: what is out of sight waits, what is in sight changes once a second, or
// less often if that is much work: the machine may be the one that trains.

const REST = 1_000;
const REST_PER_WORK = 5;
const NEAR = "500px";

/**
 * Keeps what `element` shows fresh by calling `refresh`.
 *
 * @returns `later`: it became old, refresh it when it is in sight and rested; `now`: the reader asked for another.
 */
export function keptFresh(element, refresh) {
  let old = false;
  let near = false;
  let resting = false;
  let latest = 0;

  async function start() {
    const turn = ++latest;
    old = false;
    resting = true;
    const began = performance.now();
    await refresh();
    const took = performance.now() - began;
    setTimeout(() => turn === latest && wake(), Math.max(REST, REST_PER_WORK * took));
  }

  function wake() {
    resting = false;
    startIfDue();
  }

  function startIfDue() {
    if (old && near && !resting) {
      start();
    }
  }

  function watch(entries) {
    near = entries.at(-1).isIntersecting;
    startIfDue();
  }

  new IntersectionObserver(watch, { rootMargin: NEAR }).observe(element);

  return {
    later() {
      old = true;
      startIfDue();
    },
    now() {
      old = true;
      if (near) {
        start();
      }
    },
  };
}
