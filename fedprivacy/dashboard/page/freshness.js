// A live run changes faster than anybody reads: what is out of sight waits, what is in sight changes once a second, or
// less often if that is much work: the machine may be the one that trains. What the reader asked for and is not near is
// drawn when the browser is idle, one after the other, so that a print has all of it.

const REST = 1_000;
const REST_PER_WORK = 5;
const LONGEST_REST = 30_000; // what took longer waited: for the network, or for a pointer to leave a tooltip
const NEAR = "500px";

const all = new Set();
let queue = Promise.resolve();

addEventListener("beforeprint", () => all.forEach((catchUp) => catchUp()));

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
    setTimeout(() => turn === latest && wake(), Math.min(Math.max(REST, REST_PER_WORK * took), LONGEST_REST));
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

  function catchUp() {
    return old && element.checkVisibility() && start();
  }

  function watch(entries) {
    near = entries.at(-1).isIntersecting;
    startIfDue();
  }

  new IntersectionObserver(watch, { rootMargin: NEAR }).observe(element);
  all.add(catchUp);

  return {
    later() {
      old = true;
      startIfDue();
    },
    now() {
      old = true;
      if (near) {
        start();
      } else {
        queue = queue.then(idle, idle).then(catchUp);
      }
    },
  };
}

function idle() {
  return new Promise((resolve) => (window.requestIdleCallback ?? setTimeout)(resolve));
}
