// The page, and what of it several modules look for.

export const root = globalThis.document?.documentElement; // there is none while the page is built
export const all = (selector) => [...document.querySelectorAll(selector)];

/** Only what scrolls takes the keyboard's focus; `data-more` says on which sides it goes on. */
export function markScrolling(box) {
  const hidden = box.scrollWidth - box.clientWidth;
  if (hidden > 0) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
  const more = [box.scrollLeft > 1 && "left", hidden - box.scrollLeft > 1 && "right"].filter(Boolean);
  if (more.length) box.dataset.more = more.join(" ");
  else delete box.dataset.more;
}

/** What the reader chose before, or null. */
export function remembered(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  } // storage may be forbidden
}

/** Keep what the reader chose. */
export function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {}
}
