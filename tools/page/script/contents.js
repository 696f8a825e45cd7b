// The contents: the section in view is marked, its Part unfolded; how much of the page is read.

import { all, root } from "./dom.js";
import { lightMap } from "./map.js";

const contents = document.getElementById("contents");
const [here, read] = ["here", "read"].map((id) => document.getElementById(id));
const wide = matchMedia("(min-width: 68rem)");
const links = all("nav a");
const headings = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));

/** Show or hide the sections of a Part in the contents. */
function showSections(item, shown) {
  item.classList.toggle("open", shown);
  item.querySelector("button")?.setAttribute("aria-expanded", shown);
}

for (const item of all("nav > ol > li:has(ol)")) {
  const more = Object.assign(document.createElement("button"), { type: "button", className: "more" });
  more.setAttribute("aria-label", `Sections of ${item.querySelector("a").textContent}`);
  more.addEventListener("click", () => showSections(item, !item.classList.contains("open")));
  if (item.querySelectorAll("li").length > 1) item.querySelector("a").after(more); // else a stop for one line
  showSections(item, false);
}

/** The part of the article that a heading is in: the place of one far below is known without layout. */
const blockOf = (heading) => heading.closest("article > *");
/** Is it in a closed fold, and so nowhere? */
const isFolded = (heading) => heading.closest("summary, details:not([open])")?.matches("details") ?? false;

const partOf = (link) => link.closest("nav > ol > li").querySelector("a");

/** A section with its Part, short: a bar has little room. */
function nameOf(link) {
  const part = partOf(link);
  if (part === link) return link.textContent;
  return `${(part.querySelector(".part") ?? part).textContent} · ${link.textContent}`;
}

function markSection() {
  const below = root.scrollHeight - scrollY - innerHeight; // the last headings never come to the top
  read.style.setProperty("--read", (scrollY / Math.max(1, scrollY + below)).toFixed(4));
  const line = Math.max(120, innerHeight - below);
  const isAbove = (box) => box.getBoundingClientRect().top <= line;
  const passed = (heading) => !isFolded(heading) && isAbove(blockOf(heading)) && isAbove(heading);
  const current = links[headings.findLastIndex(passed)];
  if (current?.hasAttribute("aria-current")) return;
  links.forEach((link) => link.removeAttribute("aria-current"));
  all("nav li.open").forEach((item) => showSections(item, false));
  here.textContent = current ? nameOf(current) : "";
  lightMap(current && partOf(current).hash.slice(1), current?.hash.slice(1));
  if (!current) return;
  current.setAttribute("aria-current", "true");
  showSections(current.closest("nav > ol > li"), true);
  const [nav, top] = [current.closest("nav"), current.offsetTop];
  if (top < nav.scrollTop + 40 || top > nav.scrollTop + nav.clientHeight - 60)
    nav.scrollTop = top - nav.clientHeight / 3;
}

function placeContents() {
  contents.open = wide.matches;
}

// A tap beside the open contents comes to them, see page.css: it works nothing that lies there.
addEventListener("click", ({ target }) => {
  const done = target === contents || target.closest("a, nav [data-switch]");
  if (done && !wide.matches) contents.open = false;
});
const markSoon = () => requestAnimationFrame(markSection);
addEventListener("scroll", markSoon, { passive: true });
// Marked at once, too; what comes near gets its height, so that sections move.
new ResizeObserver(markSoon).observe(document.querySelector("article"));
wide.addEventListener("change", placeContents);
placeContents();
