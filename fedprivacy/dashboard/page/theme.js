// Light, dark, or as the system likes it. Remembered where the browser allows it.

const KEY = "fedprivacy-theme";
const CHOICES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let choice = remembered();

/** 'light' or 'dark': what is shown now. */
export function shownTheme() {
  return choice === "auto" ? (system.matches ? "dark" : "light") : choice;
}

/** What the reader chose: also 'auto'. */
export function chosenTheme() {
  return choice;
}

/** The choice that follows, in a circle. */
export function nextTheme() {
  return CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
}

/** Shows a theme, and remembers it. */
export function chooseTheme(chosen) {
  choice = chosen;
  try {
    localStorage.setItem(KEY, chosen);
  } catch {
    // a browser that stores nothing still shows the theme
  }
  apply();
}

/** Calls `listener` when the page turns light or dark. */
export function onTheme(listener) {
  listeners.add(listener);
}

function remembered() {
  try {
    const stored = localStorage.getItem(KEY);
    return CHOICES.includes(stored) ? stored : "auto";
  } catch {
    return "auto";
  }
}

function apply() {
  document.documentElement.dataset.theme = choice;
  listeners.forEach((listener) => listener(shownTheme()));
}

system.addEventListener("change", apply);
apply();
