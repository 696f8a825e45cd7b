// Light or dark: as the system has it, until somebody chooses.

import { drawAgain } from "./charts.js";
import { root } from "./dom.js";

const button = document.getElementById("theme");

function setTheme(theme) {
  root.dataset.theme = theme;
  button.textContent = theme === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to the ${button.textContent.toLowerCase()} theme`);
  drawAgain();
}

function chosenTheme() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  } // storage may be forbidden
}

button.addEventListener("click", () => {
  const theme = root.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("theme", theme);
  } catch {}
  setTheme(theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  if (!chosenTheme()) setTheme(event.matches ? "dark" : "light");
});

export function startTheme() {
  setTheme(root.dataset.theme);
}
