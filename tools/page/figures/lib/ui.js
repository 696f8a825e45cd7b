// What figures are drawn with: Preact, whose templates htm reads, so that there is nothing to compile.

import { h } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import htm from "htm";

export { useEffect, useLayoutEffect, useMemo, useRef, useState };

export const html = htm.bind(h);

/** Names of classes: those of the object that are true. */
export const classes = (chosen) =>
  Object.keys(chosen)
    .filter((name) => chosen[name])
    .join(" ");

/** A button; `pressed` is for those that stay down. One that is `off` does nothing, and keeps the focus. */
export const Button = ({ pressed, off, onClick, children, ...rest }) =>
  html`<button
    type="button" aria-pressed=${pressed === undefined ? null : String(pressed)} aria-disabled=${off ? "true" : null}
    onClick=${off ? null : onClick} ...${rest}
  >${children}</button>`;
