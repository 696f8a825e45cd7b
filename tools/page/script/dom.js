// The page, and what of it several modules look for.

export const root = globalThis.document?.documentElement; // there is none while the page is built
export const all = (selector, from = document) => [...from.querySelectorAll(selector)];

/** Only what scrolls takes the keyboard's focus. */
export function markScrolling(box) {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
}
