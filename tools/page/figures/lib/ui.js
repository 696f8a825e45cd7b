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

/** A button; `pressed` is for those that stay down. */
export const Button = ({ pressed, children, ...rest }) =>
  html`<button type="button" aria-pressed=${pressed === undefined ? null : String(pressed)} ...${rest}>${children}</button>`;
