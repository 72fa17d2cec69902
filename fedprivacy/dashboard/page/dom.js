// Building elements. Texts become text nodes, never markup: a client may call itself whatever it likes.

const SVG = "http://www.w3.org/2000/svg";

/** An element; attributes like `onclick` are listeners, and those that are false or null are left out. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** One of the shapes that index.html defines; decoration, beside a word. */
export function icon(name) {
  return svg("svg", { class: `icon icon-${name}`, "aria-hidden": "true" }, svg("use", { href: `#icon-${name}` }));
}

/** The element of this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Changes a text only if it is another, so that a live page leaves a reader's selection alone. */
export function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/** Scrolls to a part of the page and lets the keyboard go on from there. */
export function jumpTo(id) {
  const target = byId(id);
  target.scrollIntoView({ block: "start" });
  target.focus({ preventScroll: true });
}

/** Says something to those who listen to the page instead of looking at it. */
export function announce(text) {
  setText(byId("announcer"), text);
}

/** Calls `action` once, when there was no call for `wait` milliseconds. */
export function debounced(action, wait) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), wait);
  };
}

/** A name that can be taken away again. */
export function chip(name, remove) {
  return el(
    "button",
    { type: "button", class: "chip", "aria-label": `Take ${name} away`, onclick: remove },
    name,
    icon("close"),
  );
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
